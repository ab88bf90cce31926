-- Statements that every SQL engine understands as they stand.
--
-- A statement begins with `-- name: …` and ends where the next begins. Parameters are `:name`; `:now` is always there,
-- the moment at which the program runs. A name that an engine's own file defines too is taken from there.
-- States: 0 seen, 1 waiting, 2 claimed, 3 done (no queue row), 4 dead.

-- name: later_versions
SELECT name FROM postroom_schema WHERE version > :version

-- name: insert_message
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, headers, correlation_id, group_id,
                              collapse_key, hash, hash_algorithm, due, expires, received_at, first_seen, last_seen)
VALUES (:id, :box, :source, :message_id, :topic, :payload, :format, :headers, :correlation_id, :group_id,
        :collapse_key, :hash, :hash_algorithm, :due, :expires, :received_at, :first_seen, :last_seen)
ON CONFLICT (box, message_id, source, retired) DO NOTHING

-- name: insert_plain_message
-- As above for messages without any of the optional columns: binding many NULLs costs more than the insert itself.
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
VALUES (:id, :box, :source, :message_id, :topic, :payload, :format, :first_seen, :last_seen)
ON CONFLICT (box, message_id, source, retired) DO NOTHING

-- name: inserted
SELECT id FROM postroom_message WHERE id BETWEEN :first AND :last

-- name: enter
INSERT INTO postroom_queue (id, box, state, available_at, fence, group_id, collapse_key, expires)
VALUES (:id, :box, :state, :available_at, :fence, :group_id, :collapse_key, :expires)

-- name: enter_plain
-- As above for all new messages of a range, where none is in a line or due later.
INSERT INTO postroom_queue (id, box, state, available_at, collapse_key, expires)
SELECT id, box, 1, first_seen, collapse_key, expires FROM postroom_message WHERE id BETWEEN :first AND :last

-- name: known
-- Who holds a key, and how far it is.
SELECT m.id, coalesce(q.state, 3) AS state, m.hash, m.hash_algorithm, m.first_seen, m.revision, m.group_id,
       q.group_id AS line, q.available_at, q.fence, m.topic
  FROM postroom_message m
  LEFT JOIN postroom_queue q ON q.id = m.id
 WHERE m.box = :box AND m.message_id = :message_id AND m.source = :source AND m.retired = 0

-- name: retire
-- The dedup window has passed: the message stays, its key is free.
UPDATE postroom_message SET retired = id WHERE id = :id

-- name: touch
UPDATE postroom_message SET last_seen = :now WHERE id = :id

-- name: fill_hash
UPDATE postroom_message SET hash = :hash, hash_algorithm = :hash_algorithm WHERE id = :id AND hash IS NULL

-- name: fill_seen
-- A key that was only checked gets its message.
UPDATE postroom_message
   SET topic = :topic, payload = :payload, format = :format, headers = :headers, correlation_id = :correlation_id,
       group_id = :group_id, collapse_key = :collapse_key, hash = :hash, hash_algorithm = :hash_algorithm, due = :due,
       expires = :expires, received_at = :received_at
 WHERE id = :id

-- name: enter_seen
UPDATE postroom_queue
   SET state = 1, available_at = :available_at, fence = :fence, group_id = :group_id, collapse_key = :collapse_key,
       expires = :expires
 WHERE id = :id

-- name: set_expires
UPDATE postroom_queue SET expires = :expires WHERE id = :id

-- name: set_stale
UPDATE postroom_queue SET stale = 1 WHERE id = :id AND state = 2

-- name: offer
UPDATE postroom_queue SET available_at = :at, fence = :fence WHERE id = :id AND state = 1 AND fence = :was

-- name: rivals
-- Waiting messages with the same collapse key, older than the new one.
SELECT id FROM postroom_queue
 WHERE box = :box AND collapse_key = :collapse_key AND state = 1 AND id < :before AND id <> :id
 ORDER BY id

-- name: held_by_name
-- What a bare message id means to an owner.
SELECT m.source, q.id, q.fence
  FROM postroom_message m
  LEFT JOIN postroom_queue q ON q.id = m.id AND q.owner = :owner AND q.state = 2
 WHERE m.box = :box AND m.message_id = :message_id AND m.retired = 0

-- name: wait
UPDATE postroom_queue
   SET state = 1, owner = NULL, attempt = :attempt, available_at = :at, last_error = coalesce(:error, last_error),
       lost_leases = 0
 WHERE id = :id

-- name: bury
UPDATE postroom_queue
   SET state = 4, owner = NULL, available_at = NULL, died_at = :now, last_error = :error, group_id = :group_id,
       attempt = attempt + :counted, fence = CASE WHEN fence < 0 THEN 0 ELSE fence END
 WHERE id = :id

-- name: leave_line
UPDATE postroom_queue SET group_id = NULL WHERE id = :id

-- name: set_error
UPDATE postroom_queue SET last_error = :error, attempt = attempt + :counted WHERE id = :id

-- name: late
-- Leases that have passed.
SELECT id FROM postroom_queue WHERE box = :box AND state = 2 AND available_at <= :now ORDER BY available_at, id LIMIT :limit

-- name: free
UPDATE postroom_queue SET state = 1, owner = NULL, lost_leases = lost_leases + 1 WHERE id = :id

-- name: expired
SELECT id, group_id FROM postroom_queue
 WHERE box = :box AND expires <= :now AND state = 1
 ORDER BY expires, id
 LIMIT :limit

-- name: revive
UPDATE postroom_queue
   SET state = 1, died_at = NULL, attempt = 0, deliveries = 0, lost_leases = 0, expires = NULL, group_id = :group_id, available_at = :at,
       fence = CASE WHEN fence = 0 THEN 1 ELSE fence END  -- it has had its turn: it stays in line
 WHERE id = :id

-- name: forget_expires
UPDATE postroom_message SET expires = NULL WHERE id = :id

-- name: find
-- Among the next messages of all boxes, in their order: a page is mostly there, however large the box is. A bare box
-- would make an index seem to fit by which all of it is read.
SELECT e.*
  FROM postroom_entry e
 WHERE e.box || '' = :box AND e.id > :after
   AND e.id < (SELECT min(m.id) FROM postroom_message m WHERE m.id > :after) + :looks
   AND (:topic IS NULL OR e.topic = :topic)
   AND (:source IS NULL OR e.source = :source)
   AND (:group_id IS NULL OR e.group_id = :group_id)
   AND (:correlation_id IS NULL OR e.correlation_id = :correlation_id)
   AND (:seen = 1 OR e.state <> 0) AND (:waiting = 1 OR e.state <> 1) AND (:claimed = 1 OR e.state <> 2)
   AND (:done = 1 OR e.state <> 3) AND (:dead = 1 OR e.state <> 4)
 ORDER BY e.id
 LIMIT :limit

-- name: find_far
-- In all of the box.
SELECT e.*
  FROM postroom_entry e
 WHERE e.box = :box AND e.id > :after
   AND (:topic IS NULL OR e.topic = :topic)
   AND (:source IS NULL OR e.source = :source)
   AND (:group_id IS NULL OR e.group_id = :group_id)
   AND (:correlation_id IS NULL OR e.correlation_id = :correlation_id)
   AND (:seen = 1 OR e.state <> 0) AND (:waiting = 1 OR e.state <> 1) AND (:claimed = 1 OR e.state <> 2)
   AND (:done = 1 OR e.state <> 3) AND (:dead = 1 OR e.state <> 4)
 ORDER BY e.id
 LIMIT :limit

-- name: find_dead
-- As `find`, for dead letters only: few among many, and they have an index of their own.
SELECT w.*
  FROM postroom_queue q
  JOIN postroom_work w ON w.id = q.id
 WHERE q.box = :box AND q.state = 4 AND q.id > :after
   AND (:blocking = 0 OR q.group_id IS NOT NULL)
   AND (:topic IS NULL OR w.topic = :topic)
   AND (:source IS NULL OR w.source = :source)
   AND (:group_id IS NULL OR w.group_id = :group_id)
   AND (:correlation_id IS NULL OR w.correlation_id = :correlation_id)
 ORDER BY q.id
 LIMIT :limit

-- name: find_named
-- All that ever had this id, a retired holder of the key included.
SELECT e.* FROM postroom_entry e WHERE e.box = :box AND e.message_id = :message_id ORDER BY e.id

-- name: box_order
SELECT fifo FROM postroom_box WHERE box = :box

-- name: record_order
INSERT INTO postroom_box (box, fifo) VALUES (:box, :fifo) ON CONFLICT (box) DO NOTHING

-- name: change_order
INSERT INTO postroom_box (box, fifo) VALUES (:box, :fifo) ON CONFLICT (box) DO UPDATE SET fifo = excluded.fifo

-- name: boxes
-- From one box to the next by the index of keys, however many messages each has.
WITH RECURSIVE found (box) AS (
    SELECT min(box) FROM postroom_message
    UNION ALL
    SELECT (SELECT min(m.box) FROM postroom_message m WHERE m.box > found.box) FROM found WHERE found.box IS NOT NULL
)
SELECT box FROM found WHERE box IS NOT NULL

-- name: count_queue
SELECT state, count(*) FROM postroom_queue WHERE box = :box GROUP BY state

-- name: count_done
SELECT count(*) FROM postroom_ledger WHERE box = :box
