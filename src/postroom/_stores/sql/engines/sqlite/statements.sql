-- SQLite's own statements. Each says why it differs.

-- name: has_schema
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'postroom_schema'

-- name: schema_version
SELECT coalesce(max(version), 0) FROM postroom_schema

-- name: lock_schema
-- BEGIN IMMEDIATE has the only lock there is.
SELECT 1

-- name: moment
-- SQLite runs in this process: its clock is ours, and a finer one than julianday('now').
SELECT :now

-- name: reserve
-- Ids are reserved first, because executemany returns no rows. It also takes the write lock before anything is read.
UPDATE postroom_sequence SET value = value + :count WHERE name = 'message' RETURNING value

-- name: replace
-- New content for a known key. `IS NOT` compares NULLs too, and a comparison is a number.
UPDATE postroom_message
   SET topic = :topic, payload = :payload, format = :format, headers = :headers, correlation_id = :correlation_id,
       hash = :hash, hash_algorithm = :hash_algorithm, due = :due, expires = coalesce(:expires, expires),
       revision = revision + (topic <> :topic OR payload IS NOT :payload OR format <> :format OR hash IS NOT :hash)
 WHERE id = :id
RETURNING revision

-- Lists come as JSON text: SQLite has no arrays, and a list of parameters would change the text with its length.

-- name: candidates
-- Two ranges of one index, each read only as far as asked. Suspects are passed by where none may be claimed, unless they
-- must die.
SELECT w.*
  FROM (SELECT id, available_at FROM (
          SELECT id, available_at FROM postroom_queue
           WHERE box = :box AND state = 2 AND available_at <= :now
             AND id NOT IN (SELECT value FROM json_each(:in_hand))
             AND (:suspects OR lost_leases + 1 < CASE WHEN deliveries + 1 >= :most THEN 1 ELSE :suspect_from END
                  OR deliveries >= :most OR lost_leases + 1 >= :most_lost OR expires <= :now)
           ORDER BY available_at, id LIMIT :limit)
        UNION ALL
        SELECT id, available_at FROM (
          SELECT id, available_at FROM postroom_queue
           WHERE box = :box AND state = 1 AND available_at <= :now
             AND (:suspects OR lost_leases < CASE WHEN deliveries + 1 >= :most THEN 1 ELSE :suspect_from END
                  OR deliveries >= :most OR lost_leases >= :most_lost OR expires <= :now)
           ORDER BY available_at, id LIMIT :limit)
        ORDER BY available_at, id LIMIT :limit) picked
  JOIN postroom_work w ON w.id = picked.id
 ORDER BY picked.available_at, picked.id

-- name: candidates_on_topics
SELECT w.*
  FROM (SELECT id, available_at FROM (
          SELECT q.id, q.available_at FROM postroom_queue q JOIN postroom_message m ON m.id = q.id
           WHERE q.box = :box AND q.state = 2 AND q.available_at <= :now
             AND q.id NOT IN (SELECT value FROM json_each(:in_hand))
             AND (:suspects OR q.lost_leases + 1 < CASE WHEN q.deliveries + 1 >= :most THEN 1 ELSE :suspect_from END
                  OR q.deliveries >= :most OR q.lost_leases + 1 >= :most_lost OR q.expires <= :now)
             AND m.topic IN (SELECT value FROM json_each(:topics))
           ORDER BY q.available_at, q.id LIMIT :limit)
        UNION ALL
        SELECT id, available_at FROM (
          SELECT q.id, q.available_at FROM postroom_queue q JOIN postroom_message m ON m.id = q.id
           WHERE q.box = :box AND q.state = 1 AND q.available_at <= :now
             AND (:suspects OR q.lost_leases < CASE WHEN q.deliveries + 1 >= :most THEN 1 ELSE :suspect_from END
                  OR q.deliveries >= :most OR q.lost_leases >= :most_lost OR q.expires <= :now)
             AND m.topic IN (SELECT value FROM json_each(:topics))
           ORDER BY q.available_at, q.id LIMIT :limit)
        ORDER BY available_at, id LIMIT :limit) picked
  JOIN postroom_work w ON w.id = picked.id
 ORDER BY picked.available_at, picked.id

-- name: take
UPDATE postroom_queue
   SET state = 2, owner = :owner, fence = max(fence, 0) + 1, deliveries = deliveries + 1, available_at = :until, stale = 0,
       lost_leases = lost_leases + (state = 2)
 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: first_in_lines
SELECT q.group_id, min(q.id) FROM json_each(:groups) g
  CROSS JOIN postroom_queue q ON q.box = :box AND q.group_id = g.value
 WHERE NOT (q.fence < 0 AND q.available_at > :now)
 GROUP BY q.group_id

-- name: hints
-- Rows of a FIFO box whose time has come.
SELECT h.id, h.group_id, h.expires, h.deliveries, h.lost_leases, :now
  FROM (SELECT * FROM (
          SELECT id, group_id, expires, deliveries, lost_leases + 1 AS lost_leases, available_at FROM postroom_queue
           WHERE box = :box AND state = 2 AND available_at <= :now AND id NOT IN (SELECT value FROM json_each(:seen))
             AND (:topics IS NULL
                  OR (SELECT topic FROM postroom_message m WHERE m.id = postroom_queue.id)
                     IN (SELECT value FROM json_each(:topics)))
           ORDER BY available_at, id LIMIT :limit)
        UNION ALL
        SELECT * FROM (
          SELECT id, group_id, expires, deliveries, lost_leases, available_at FROM postroom_queue
           WHERE box = :box AND state = 1 AND available_at <= :now AND id NOT IN (SELECT value FROM json_each(:seen))
             AND (:topics IS NULL
                  OR (SELECT topic FROM postroom_message m WHERE m.id = postroom_queue.id)
                     IN (SELECT value FROM json_each(:topics)))
           ORDER BY available_at, id LIMIT :limit)) h
 ORDER BY h.available_at, h.id
 LIMIT :limit

-- name: lines
-- Groups from their fronts; of a group that is held, only the first in line. SQLite reads the index of a line as far as
-- the limit says, and for as many groups.
SELECT g.value, NULL, q.id, q.state, q.available_at, q.fence, q.expires, q.deliveries, q.lost_leases + (q.state = 2), m.topic
  FROM json_each(:groups) g
  CROSS JOIN postroom_queue q ON q.id IN (
        SELECT l.id FROM postroom_queue l
         WHERE l.box = :box AND l.group_id = g.value
           AND NOT (l.fence < 0 AND l.available_at > :now)
         ORDER BY l.id LIMIT :limit)
  CROSS JOIN postroom_message m ON m.id = q.id
 WHERE NOT EXISTS (SELECT 1 FROM postroom_queue h INDEXED BY postroom_queue_held
                    WHERE h.box = :box AND h.group_id = g.value AND h.state = 2
                      AND (h.available_at > :now OR h.id IN (SELECT value FROM json_each(:in_hand))))
UNION ALL
SELECT g.value,
       (SELECT h.id FROM postroom_queue h INDEXED BY postroom_queue_held
         WHERE h.box = :box AND h.group_id = g.value AND h.state = 2
           AND (h.available_at > :now OR h.id IN (SELECT value FROM json_each(:in_hand))) LIMIT 1) AS holder,
       (SELECT l.id FROM postroom_queue l
         WHERE l.box = :box AND l.group_id = g.value AND NOT (l.fence < 0 AND l.available_at > :now)
         ORDER BY l.id LIMIT 1),
       0, NULL, 0, NULL, 0, 0, ''
  FROM json_each(:groups) g
 WHERE holder IS NOT NULL
 ORDER BY 1, 3

-- name: find_waiting
-- As `find_dead`, for waiting messages. No index has all of them: the ready index has those that can be claimed, now or
-- later, and the index of lines has those that stand behind the first. `+id` keeps SQLite from reading the table instead.
SELECT w.*
  FROM (SELECT id FROM postroom_queue INDEXED BY postroom_queue_ready
         WHERE box = :box AND state = 1 AND available_at IS NOT NULL AND +id > :after
        UNION ALL
        SELECT id FROM postroom_queue INDEXED BY postroom_queue_line
         WHERE box = :box AND group_id IS NOT NULL AND state = 1 AND available_at IS NULL AND +id > :after) waiting
  CROSS JOIN postroom_work w ON w.id = waiting.id
 WHERE (:topic IS NULL OR w.topic = :topic)
   AND (:source IS NULL OR w.source = :source)
   AND (:group_id IS NULL OR w.group_id = :group_id)
   AND (:correlation_id IS NULL OR w.correlation_id = :correlation_id)
 ORDER BY waiting.id
 LIMIT :limit

-- name: lock_dead
SELECT q.id FROM json_each(:ids) i CROSS JOIN postroom_queue q ON q.id = i.value WHERE q.state = 4

-- name: listed
SELECT w.* FROM json_each(:ids) i CROSS JOIN postroom_work w ON w.id = i.value ORDER BY i.key

-- name: sleep
-- Not its turn: it waits until the first in line leaves.
UPDATE postroom_queue SET state = 1, owner = NULL, available_at = NULL, fence = max(fence, 0)
 WHERE id = :id AND :ahead < :id AND state IN (1, 2)

-- name: end_batch
-- What is not a success ends the batch of its group: whoever stands behind is given back uncounted. Without statistics
-- SQLite prefers the ready index, and would look at every claim of the box.
UPDATE postroom_queue INDEXED BY postroom_queue_held SET state = 1, owner = NULL, available_at = NULL
 WHERE box = :box AND group_id = :group_id AND id > :id AND state = 2

-- name: promote
-- The first of each line, if it waits only for its turn.
UPDATE postroom_queue SET available_at = :now
 WHERE id IN (SELECT (SELECT q.id FROM postroom_queue q
                       WHERE q.box = :box AND q.group_id = g.value
                         AND NOT (q.fence < 0 AND q.available_at > :now)
                       ORDER BY q.id
                       LIMIT 1)
                FROM json_each(:groups) g)
   AND state = 1 AND available_at IS NULL

-- name: hold
-- Claims that still hold.
SELECT q.id, q.attempt, q.group_id, q.stale
  FROM json_each(:claims) c
  CROSS JOIN postroom_queue q ON q.id = CAST(c.key AS INTEGER) AND q.fence = c.value
 WHERE q.box = :box AND q.owner = :owner AND q.state = 2

-- name: renew
UPDATE postroom_queue SET available_at = :until
 WHERE box = :box AND owner = :owner AND state = 2
   AND id IN (SELECT CAST(c.key AS INTEGER) FROM json_each(:claims) c
               WHERE c.value = postroom_queue.fence AND CAST(c.key AS INTEGER) = postroom_queue.id)
RETURNING id, 1

-- name: complete
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT q.id, q.box, :now, q.owner, 'handled', q.attempt, q.deliveries, q.last_error
  FROM json_each(:claims) c
  CROSS JOIN postroom_queue q ON q.id = CAST(c.key AS INTEGER) AND q.fence = c.value
 WHERE q.box = :box AND q.owner = :owner AND q.state = 2
RETURNING id

-- name: finish
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT id, box, :now, NULL, :ending, attempt, deliveries, last_error
  FROM postroom_queue
 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: dequeue
DELETE FROM postroom_queue WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING group_id

-- name: blank
UPDATE postroom_message SET payload = '', format = 'text', headers = NULL
 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: find_listed
SELECT e.* FROM json_each(:ids) i CROSS JOIN postroom_entry e ON e.id = i.value WHERE e.box = :box ORDER BY e.id

-- name: purge_done
DELETE FROM postroom_ledger
 WHERE id IN (SELECT l.id
                FROM postroom_ledger l
                JOIN postroom_message m ON m.id = l.id
               WHERE l.box = :box AND l.completed_at <= :cutoff
                 AND (:sliding = 0 OR m.last_seen <= :cutoff)
                 AND (:window IS NULL OR m.first_seen + :window <= :now)
               ORDER BY l.completed_at, l.id
               LIMIT :limit)
RETURNING id

-- name: purge_dead
DELETE FROM postroom_queue
 WHERE id IN (SELECT id FROM postroom_queue
               WHERE box = :box AND state = 4 AND died_at <= :cutoff ORDER BY id LIMIT :limit)
RETURNING id, group_id

-- name: purge_seen
DELETE FROM postroom_queue
 WHERE id IN (SELECT q.id FROM postroom_queue q
                JOIN postroom_message m ON m.id = q.id
               WHERE q.box = :box AND q.state = 0 AND m.last_seen <= :cutoff ORDER BY q.id LIMIT :limit)
RETURNING id, group_id

-- name: forget
DELETE FROM postroom_message WHERE id IN (SELECT value FROM json_each(:ids))
