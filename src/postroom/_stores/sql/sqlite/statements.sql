-- Statements of SQLite. Each says why it is not in common.sql, or differs from the one there.
--
-- SQLite has no arrays: lists are JSON text and are read with json_each, so that a statement has the same text for
-- lists of any length. CROSS JOIN fixes the order of a join: the list first, then its rows by primary key. A write
-- transaction has the lock of the whole database, so no statement locks rows.

-- name: has_schema
-- Each engine has its own catalog.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'postroom_schema'

-- name: lock_schema
-- BEGIN IMMEDIATE has taken the only lock of the database.
SELECT 1

-- name: current_time
-- SQLite runs in this process, so its clock is this process's. That is finer than julianday('now').
SELECT :now

-- name: reserve_ids
-- SQLite has no sequences. Ids are reserved before the insert, because executemany returns no rows. The UPDATE also
-- takes the write lock before the transaction reads.
UPDATE postroom_sequence SET value = value + :count WHERE name = 'message' RETURNING value

-- name: replace_content
-- Replaces the content of a known key. IS NOT compares NULLs and values of different types; a comparison is 0 or 1.
UPDATE postroom_message
   SET topic = :topic, payload = :payload, format = :format, headers = :headers, <<{label} = :{label}>>,
       hash = :hash, hash_algorithm = :hash_algorithm, due = :due, expires = coalesce(:expires, expires),
       revision = revision + (topic <> :topic OR payload IS NOT :payload OR format <> :format OR hash IS NOT :hash)
 WHERE id = :id
RETURNING revision

-- == begin ==

-- name: enqueue_claimed
-- Inserts the queue row of a new record of a guard. PostgreSQL inserts records and queue rows with one statement.
INSERT INTO postroom_queue (id, box, state, available_at, owner, fence, deliveries)
VALUES (:id, :box, 2, :until, :owner, 1, 1)

-- name: lock_records
-- Reads the records that have these keys; the write lock is enough. JSON instead of arrays. The columns are those of
-- postroom_entry, then hash_algorithm and the time.
SELECT e.*, m.hash_algorithm, :now
  FROM json_each(:keys) k
  CROSS JOIN postroom_message m
          ON m.box = :box AND m.message_id = json_extract(k.value, '$[1]') AND m.source = json_extract(k.value, '$[0]')
         AND m.retired = 0
  CROSS JOIN postroom_entry e ON e.id = m.id

-- name: claim_records
-- The end of the lease is in available_at.
UPDATE postroom_queue
   SET state = 2, owner = :owner, fence = fence + 1, deliveries = deliveries + 1, available_at = :until, stale = 0,
       delayed = 0, lost_leases = lost_leases + (state = 2)
 WHERE id = :id

-- name: see_records
-- PostgreSQL has an array.
UPDATE postroom_message SET last_seen = :now WHERE id = :id

-- == claim ==

-- name: find_claimable
-- Rows of a box without order that can be claimed. Only SQLite reads before it claims: it has no UPDATE with LIMIT.
-- Expired leases and waiting rows are two ranges of the ready index, and each is read only up to the limit. Suspects
-- are left out if the claim takes none, except undeliverable ones, which the claim makes dead. Rows with waits_for are
-- not claimed: the claim looks at their joins.
SELECT w.*
  FROM (SELECT id, available_at FROM (
          SELECT id, available_at FROM postroom_queue
           WHERE box = :box AND state = 2 AND available_at <= :now
             AND id NOT IN (SELECT value FROM json_each(:in_hand))
             AND (:suspects
                  OR lost_leases + 1 < CASE WHEN deliveries + 1 >= :max_deliveries THEN 1 ELSE :suspect_from END
                  OR deliveries >= :max_deliveries OR lost_leases + 1 >= :max_lost_leases OR expires <= :now)
           ORDER BY available_at, id LIMIT :limit)
        UNION ALL
        SELECT id, available_at FROM (
          SELECT id, available_at FROM postroom_queue
           WHERE box = :box AND state = 1 AND available_at <= :now
             AND (waits_for IS NULL OR id NOT IN (SELECT value FROM json_each(:in_hand)))
             AND (:suspects
                  OR lost_leases < CASE WHEN deliveries + 1 >= :max_deliveries THEN 1 ELSE :suspect_from END
                  OR deliveries >= :max_deliveries OR lost_leases >= :max_lost_leases OR expires <= :now)
           ORDER BY available_at, id LIMIT :limit)
        ORDER BY available_at, id LIMIT :limit) picked
  JOIN postroom_work w ON w.id = picked.id
 ORDER BY picked.available_at, picked.id

-- name: find_claimable_on_topics
-- Like find_claimable, for some topics. A separate statement, since the topic costs a read of each message.
SELECT w.*
  FROM (SELECT id, available_at FROM (
          SELECT q.id, q.available_at FROM postroom_queue q JOIN postroom_message m ON m.id = q.id
           WHERE q.box = :box AND q.state = 2 AND q.available_at <= :now
             AND q.id NOT IN (SELECT value FROM json_each(:in_hand))
             AND (:suspects
                  OR q.lost_leases + 1 < CASE WHEN q.deliveries + 1 >= :max_deliveries THEN 1 ELSE :suspect_from END
                  OR q.deliveries >= :max_deliveries OR q.lost_leases + 1 >= :max_lost_leases OR q.expires <= :now)
             AND m.topic IN (SELECT value FROM json_each(:topics))
           ORDER BY q.available_at, q.id LIMIT :limit)
        UNION ALL
        SELECT id, available_at FROM (
          SELECT q.id, q.available_at FROM postroom_queue q JOIN postroom_message m ON m.id = q.id
           WHERE q.box = :box AND q.state = 1 AND q.available_at <= :now
             AND (q.waits_for IS NULL OR q.id NOT IN (SELECT value FROM json_each(:in_hand)))
             AND (:suspects
                  OR q.lost_leases < CASE WHEN q.deliveries + 1 >= :max_deliveries THEN 1 ELSE :suspect_from END
                  OR q.deliveries >= :max_deliveries OR q.lost_leases >= :max_lost_leases OR q.expires <= :now)
             AND (q.waits_for IS NOT NULL OR m.topic IN (SELECT value FROM json_each(:topics)))
           ORDER BY q.available_at, q.id LIMIT :limit)
        ORDER BY available_at, id LIMIT :limit) picked
  JOIN postroom_work w ON w.id = picked.id
 ORDER BY picked.available_at, picked.id

-- name: claim
-- Claims rows that this transaction has read. Only SQLite needs no check here: it has the write lock since it read
-- them.
UPDATE postroom_queue
   SET state = 2, owner = :owner, fence = fence + 1, deliveries = deliveries + 1, available_at = :until, stale = 0,
       delayed = 0, lost_leases = lost_leases + (state = 2)
 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: find_nonempty_lines
-- Returns the groups that have a member in line. Only SQLite runs this at an insert: its write lock keeps
-- the result valid.
SELECT g.value FROM json_each(:groups) g
 WHERE EXISTS (SELECT 1 FROM postroom_queue q
                WHERE q.box = :box AND q.group_id = g.value AND NOT (q.delayed AND q.available_at > :now))

-- name: find_candidates
-- Rows of a FIFO box that can be claimed by their time. Two ranges of the ready index, as in find_claimable. No group
-- is locked: the transaction has the write lock.
SELECT h.id, h.group_id, h.expires, h.deliveries, h.lost_leases, :now, h.waits_for IS NOT NULL
  FROM (SELECT * FROM (
          SELECT id, group_id, expires, deliveries, lost_leases + 1 AS lost_leases, available_at, NULL AS waits_for
            FROM postroom_queue
           WHERE box = :box AND state = 2 AND available_at <= :now
             AND id NOT IN (SELECT value FROM json_each(:read_before))
             AND (:topics IS NULL
                  OR (SELECT topic FROM postroom_message m WHERE m.id = postroom_queue.id)
                     IN (SELECT value FROM json_each(:topics)))
           ORDER BY available_at, id LIMIT :limit)
        UNION ALL
        SELECT * FROM (
          SELECT id, group_id, expires, deliveries, lost_leases, available_at, waits_for FROM postroom_queue
           WHERE box = :box AND state = 1 AND available_at <= :now
             AND id NOT IN (SELECT value FROM json_each(:read_before))
             AND (:topics IS NULL OR waits_for IS NOT NULL
                  OR (SELECT topic FROM postroom_message m WHERE m.id = postroom_queue.id)
                     IN (SELECT value FROM json_each(:topics)))
           ORDER BY available_at, id LIMIT :limit)) h
 ORDER BY h.available_at, h.id
 LIMIT :limit

-- name: read_lines
-- The lines of groups from their fronts; of a held group only the first in line. The columns are those of Member.
-- SQLite has no LATERAL: the limit applies to each line, not to all lines together.
SELECT g.value, NULL, q.id, q.state, q.available_at, q.delayed, q.expires, q.deliveries, q.lost_leases + (q.state = 2),
       m.topic
  FROM json_each(:groups) g
  CROSS JOIN postroom_queue q ON q.id IN (
        SELECT l.id FROM postroom_queue l
         WHERE l.box = :box AND l.group_id = g.value
           AND NOT (l.delayed AND l.available_at > :now)
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
         WHERE l.box = :box AND l.group_id = g.value AND NOT (l.delayed AND l.available_at > :now)
         ORDER BY l.id LIMIT 1),
       0, NULL, 0, NULL, 0, 0, ''
  FROM json_each(:groups) g
 WHERE holder IS NOT NULL
 ORDER BY 1, 3

-- name: read_messages
-- Messages in the order of a list of ids, for a claim. JSON instead of an array.
SELECT w.* FROM json_each(:ids) i CROSS JOIN postroom_work w ON w.id = i.value ORDER BY i.key

-- name: sleep_behind_first
-- Lets a row sleep until the first in its line leaves. Under the write lock the first cannot leave meanwhile.
UPDATE postroom_queue SET state = 1, owner = NULL, available_at = NULL, delayed = 0
 WHERE id = :id AND :first < :id AND state IN (1, 2)

-- name: promote
-- Wakes the first in each line, if it sleeps. JSON instead of an array.
UPDATE postroom_queue SET available_at = :now
 WHERE id IN (SELECT (SELECT q.id FROM postroom_queue q
                       WHERE q.box = :box AND q.group_id = g.value
                         AND NOT (q.delayed AND q.available_at > :now)
                       ORDER BY q.id
                       LIMIT 1)
                FROM json_each(:groups) g)
   AND state = 1 AND available_at IS NULL

-- name: renew
-- Returns the renewed leases. No row is locked by another transaction. JSON instead of an array: ids with fence and
-- owner.
UPDATE postroom_queue SET available_at = :until
 WHERE id IN (SELECT q.id FROM json_each(:claims) c
               CROSS JOIN postroom_queue q
                       ON q.id = CAST(c.key AS INTEGER) AND q.fence || ' ' || q.owner = c.value
               WHERE q.box = :box AND q.state = 2)
RETURNING id, 1

-- == settle ==

-- name: find_valid_claims
-- The columns are those of ValidClaim. JSON instead of an array.
SELECT q.id, q.attempt, q.group_id, q.stale
  FROM json_each(:claims) c
  CROSS JOIN postroom_queue q ON q.id = CAST(c.key AS INTEGER) AND q.fence || ' ' || q.owner = c.value
 WHERE q.box = :box AND q.state = 2

-- name: end_batch
-- Releases the claimed members of a group behind the given one, uncounted. Without statistics SQLite prefers the ready
-- index, and would read every claim of the box.
UPDATE postroom_queue INDEXED BY postroom_queue_held SET state = 1, owner = NULL, available_at = NULL
 WHERE box = :box AND group_id = :group_id AND id > :id AND state = 2

-- name: complete
-- Inserts successes into the ledger; `dequeue` then deletes their queue rows. SQLite cannot do both in one statement.
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT q.id, q.box, :now, q.owner, 'handled', q.attempt, q.deliveries, q.last_error
  FROM json_each(:claims) c
  CROSS JOIN postroom_queue q ON q.id = CAST(c.key AS INTEGER) AND q.fence || ' ' || q.owner = c.value
 WHERE q.box = :box AND q.state = 2
RETURNING id

-- name: set_result
-- Stores what a guarded handler returned. PostgreSQL has complete_with_results.
UPDATE postroom_message SET payload = :payload, format = :format WHERE id = :id

-- name: finish
-- JSON instead of an array.
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT id, box, :now, NULL, :ending, attempt, deliveries, last_error
  FROM postroom_queue
 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: dequeue
-- JSON instead of an array.
DELETE FROM postroom_queue WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING id, group_id, watched

-- name: erase_content
-- JSON instead of an array.
UPDATE postroom_message SET payload = '', format = 'text', headers = NULL
 WHERE id IN (SELECT value FROM json_each(:ids))

-- == replay, purge, find ==

-- name: lock_dead
-- Returns which of these messages are dead. The write lock is enough. JSON instead of an array.
SELECT q.id FROM json_each(:ids) i CROSS JOIN postroom_queue q ON q.id = i.value WHERE q.state = 4

-- name: find_waiting
-- Waiting messages, in id order. No index has all of them: the ready index has those with a time, and the line index
-- has those that sleep. INDEXED BY and `+id` keep SQLite from reading the table.
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

-- name: find_by_ids
-- JSON instead of an array.
SELECT e.* FROM json_each(:ids) i CROSS JOIN postroom_entry e ON e.id = i.value WHERE e.box = :box ORDER BY e.id

-- name: purge_done
-- Times are integers here, so `first_seen + :window` is plain addition. No row needs a lock.
DELETE FROM postroom_ledger
 WHERE id IN (SELECT l.id
                FROM postroom_ledger l
                JOIN postroom_message m ON m.id = l.id
               WHERE l.box = :box AND l.completed_at <= :cutoff
                 AND (:sliding = 0 OR m.last_seen <= :cutoff)
                 AND (:window IS NULL OR m.first_seen + :window <= :now)
               ORDER BY l.completed_at, l.id
               LIMIT :limit)
RETURNING id, ending

-- name: purge_dead
-- The partial index is on the state. No row needs a lock.
DELETE FROM postroom_queue
 WHERE id IN (SELECT id FROM postroom_queue
               WHERE box = :box AND state = 4 AND died_at <= :cutoff ORDER BY id LIMIT :limit)
RETURNING id, group_id

-- name: purge_seen
-- The partial index is on the state. No row needs a lock.
DELETE FROM postroom_queue
 WHERE id IN (SELECT q.id FROM postroom_queue q
                JOIN postroom_message m ON m.id = q.id
               WHERE q.box = :box AND q.state = 0 AND m.last_seen <= :cutoff ORDER BY q.id LIMIT :limit)
RETURNING id, group_id

-- name: delete_messages
-- JSON instead of an array.
DELETE FROM postroom_message WHERE id IN (SELECT value FROM json_each(:ids))

-- == attend ==

-- name: attend
-- JSON instead of an array, and only reads: a write waits for the lock of the database. The row without a box is the
-- soft lease: the seconds until the lease of another process ends, and whether it is free. Waiting rows and claimed rows
-- are two ranges of the ready index, and the first row of each is read.
SELECT b.value,
       (SELECT (min(first.available_at) - :now) / 1e6
          FROM (SELECT * FROM (SELECT available_at FROM postroom_queue
                                WHERE box = b.value AND state = 1 AND available_at IS NOT NULL
                                ORDER BY available_at LIMIT 1)
                UNION ALL
                SELECT * FROM (SELECT available_at FROM postroom_queue
                                WHERE box = b.value AND state = 2 AND available_at IS NOT NULL
                                ORDER BY available_at LIMIT 1)) first),
       0
  FROM json_each(:boxes) b
UNION ALL
SELECT NULL, CASE WHEN until > :now AND process <> :process THEN (until - :now) / 1e6 END,
       CASE WHEN :lease > 0 THEN until IS NULL OR until <= :now ELSE process = :process AND until > :now END
  FROM postroom_attendant
 WHERE id = 1

-- == joins ==

-- name: lock_waits
-- The write lock is enough. JSON instead of an array.
SELECT q.id, :now, j.id, j.number, j.tenant_id, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps,
       j.status, j.sealed, j.fails, j.wait_id, j.metadata, j.deadline, j.created_at, j.updated_at, j.on_complete_topic,
       j.on_complete_payload, j.on_complete_format, j.on_fail_topic, j.on_fail_payload, j.on_fail_format
  FROM json_each(:ids) i
  CROSS JOIN postroom_queue q ON q.id = i.value
  CROSS JOIN postroom_join j ON j.id = q.waits_for
 WHERE q.state = 1 AND q.available_at <= :now

-- name: lock_pending_steps
-- JSON instead of an array. No row is locked by another transaction.
WITH p AS MATERIALIZED (
    SELECT g.value AS join_id,
           (SELECT q.id FROM postroom_join_member m CROSS JOIN postroom_queue q ON q.id = m.message_id
             WHERE m.join_id = g.value AND m.outcome IS NULL AND q.state <> 4
             ORDER BY m.message_id DESC
             LIMIT 1) AS step
      FROM json_each(:joins) g
)
SELECT p.join_id, p.step, count(CASE WHEN s.status = 0 THEN 1 END), count(CASE WHEN s.status = 1 THEN 1 END),
       count(CASE WHEN s.status = 2 THEN 1 END)
  FROM p LEFT JOIN postroom_step s ON s.join_id = p.join_id AND p.step IS NULL
 GROUP BY p.join_id, p.step

-- name: count_steps
-- JSON instead of an array.
SELECT s.join_id, sum(s.status = 0), sum(s.status = 1), sum(s.status = 2)
  FROM json_each(:joins) g CROSS JOIN postroom_step s ON s.join_id = g.value
 GROUP BY s.join_id

-- name: find_known_steps
-- JSON instead of an array.
SELECT m.message_id FROM json_each(:ids) i CROSS JOIN postroom_join_member m ON m.join_id = :join AND m.message_id = i.value

-- name: find_known_puts
-- JSON instead of arrays.
SELECT m.id, EXISTS (SELECT 1 FROM postroom_join_member j WHERE j.join_id = :join AND j.message_id = m.id)
  FROM json_each(:sources) s
  CROSS JOIN json_each(:message_ids) i ON i.key = s.key
  CROSS JOIN postroom_message m
          ON m.box = :box AND m.message_id = i.value AND m.source = s.value AND m.retired = 0
         AND (:since IS NULL OR m.first_seen > :since)

-- name: find_circle
-- JSON instead of an array.
WITH RECURSIVE above (id, wait_id) AS (
    SELECT j.id, j.wait_id FROM postroom_join j WHERE j.id = :join
     UNION
    SELECT j.id, j.wait_id
      FROM above a
      CROSS JOIN postroom_join_member m ON m.message_id = a.wait_id
      CROSS JOIN postroom_join j ON j.id = m.join_id AND j.status = 0
)
SELECT a.wait_id FROM above a WHERE a.wait_id IN (SELECT value FROM json_each(:ids))

-- name: wake_continuations
-- JSON instead of an array.
UPDATE postroom_queue SET available_at = :now
 WHERE id IN (SELECT j.wait_id
                FROM json_each(:ids) i
                CROSS JOIN postroom_join_member m ON m.message_id = i.value
                CROSS JOIN postroom_join j ON j.id = m.join_id
               WHERE j.wait_id IS NOT NULL)
   AND state = 1 AND waits_for IS NOT NULL
RETURNING id

-- name: replace_steps
-- Puts the message :new in the place of the first superseded step of each join. JSON instead of an array.
UPDATE postroom_join_member SET message_id = :new
 WHERE (join_id, message_id) IN (
        SELECT m.join_id, min(m.message_id)
          FROM json_each(:ids) i
          CROSS JOIN postroom_join_member m ON m.message_id = i.value
          CROSS JOIN postroom_join j ON j.id = m.join_id
         WHERE m.outcome IS NULL AND j.status = 0 AND m.join_id IS NOT :join
         GROUP BY m.join_id)
   AND NOT EXISTS (SELECT 1 FROM postroom_join_member n
                    WHERE n.join_id = postroom_join_member.join_id AND n.message_id = :new)
RETURNING join_id

-- name: watch_instead
-- JSON instead of an array.
UPDATE postroom_queue SET watched = 1
 WHERE id = :new
   AND EXISTS (SELECT 1 FROM json_each(:ids) i CROSS JOIN postroom_queue q ON q.id = i.value WHERE q.watched)

-- name: keep_failures
-- JSON instead of an array.
UPDATE postroom_join_member SET outcome = 2
 WHERE message_id IN (SELECT value FROM json_each(:ids)) AND outcome IS NULL

-- name: purge_steps
-- No row needs a lock.
DELETE FROM postroom_join_member
 WHERE (join_id, message_id) IN (
        SELECT m.join_id, m.message_id
          FROM postroom_join j
          CROSS JOIN postroom_join_member m ON m.join_id = j.id
         WHERE j.box = :box AND j.status <> 0 AND j.updated_at <= :cutoff
           AND NOT EXISTS (SELECT 1 FROM postroom_queue q WHERE q.id = j.wait_id AND q.waits_for IS NOT NULL)
         LIMIT :limit)

-- name: purge_joins
-- No row needs a lock. A join whose continuation is a dead letter stays: a replay looks at it again.
DELETE FROM postroom_join
 WHERE id IN (SELECT j.id FROM postroom_join j
               WHERE j.box = :box AND j.status <> 0 AND j.updated_at <= :cutoff
                 AND NOT EXISTS (SELECT 1 FROM postroom_queue q WHERE q.id = j.wait_id AND q.waits_for IS NOT NULL)
                 AND NOT EXISTS (SELECT 1 FROM postroom_join_member m WHERE m.join_id = j.id)
               LIMIT :limit)
