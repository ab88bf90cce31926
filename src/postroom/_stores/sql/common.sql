-- Statements that engines share.
--
-- A statement begins with `-- name: …` and ends where the next begins. Parameters are `:name`; `:now` is always there,
-- the time at which the program runs. An engine replaces a statement by one of the same name in its own statements.sql.
-- States: 0 seen, 1 waiting, 2 claimed, 3 done (no queue row), 4 dead.

-- name: schema_version
SELECT coalesce(max(version), 0) FROM postroom_schema

-- name: later_versions
SELECT name FROM postroom_schema WHERE version > :version

-- == put ==

-- name: insert_message
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, headers, <<{label}>>, group_id,
                              collapse_key, hash, hash_algorithm, due, expires, received_at, first_seen, last_seen)
VALUES (:id, :box, :source, :message_id, :topic, :payload, :format, :headers, <<:{label}>>, :group_id,
        :collapse_key, :hash, :hash_algorithm, :due, :expires, :received_at, :first_seen, :last_seen)
ON CONFLICT (box, message_id, source, retired) DO NOTHING

-- name: insert_plain_message
-- For messages without optional columns: to bind many NULLs takes longer than the insert itself.
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
VALUES (:id, :box, :source, :message_id, :topic, :payload, :format, :first_seen, :last_seen)
ON CONFLICT (box, message_id, source, retired) DO NOTHING

-- name: find_inserted
-- Returns the ids of a range that were inserted: the keys of the others were known.
SELECT id FROM postroom_message WHERE id BETWEEN :first AND :last

-- name: enqueue
INSERT INTO postroom_queue (id, box, state, available_at, delayed, group_id, collapse_key, expires)
VALUES (:id, :box, :state, :available_at, :delayed, :group_id, :collapse_key, :expires)

-- name: enqueue_plain
-- Enqueues all new messages of a range: none of them is in a line or has a due time.
INSERT INTO postroom_queue (id, box, state, available_at, collapse_key, expires)
SELECT id, box, 1, first_seen, collapse_key, expires FROM postroom_message WHERE id BETWEEN :first AND :last

-- name: find_key
-- Returns the message that has a key. The columns are those of KnownKey.
SELECT m.id, coalesce(q.state, 3) AS state, m.hash, m.hash_algorithm, m.first_seen, m.revision, m.group_id, m.topic,
       q.group_id AS line, q.available_at, q.fence, q.delayed,
       EXISTS (SELECT 1 FROM postroom_join j WHERE j.id = m.message_id AND j.wait_id = m.id) AS is_continuation
  FROM postroom_message m
  LEFT JOIN postroom_queue q ON q.id = m.id
 WHERE m.box = :box AND m.message_id = :message_id AND m.source = :source AND m.retired = 0

-- name: retire_key
-- Takes the key from a message whose deduplication window has passed.
UPDATE postroom_message SET retired = id WHERE id = :id

-- name: set_last_seen
UPDATE postroom_message SET last_seen = :now WHERE id = :id

-- name: set_hash_if_missing
UPDATE postroom_message SET hash = :hash, hash_algorithm = :hash_algorithm WHERE id = :id AND hash IS NULL

-- name: fill_seen
-- Stores the content of a message of which only the key was known.
UPDATE postroom_message
   SET topic = :topic, payload = :payload, format = :format, headers = :headers, <<{label} = :{label}>>,
       group_id = :group_id, collapse_key = :collapse_key, hash = :hash, hash_algorithm = :hash_algorithm, due = :due,
       expires = :expires, received_at = :received_at
 WHERE id = :id

-- name: enqueue_seen
-- Makes a message wait of which only the key was known.
UPDATE postroom_queue
   SET state = 1, available_at = :available_at, delayed = :delayed, group_id = :group_id, collapse_key = :collapse_key,
       expires = :expires
 WHERE id = :id

-- name: set_expires
UPDATE postroom_queue SET expires = :expires WHERE id = :id

-- name: set_stale
UPDATE postroom_queue SET stale = 1 WHERE id = :id AND state = 2

-- name: reschedule
-- Sets the time of a waiting message, unless a claim or another put has changed the row since it was read.
UPDATE postroom_queue SET available_at = :available_at, delayed = :delayed
 WHERE id = :id AND state = 1 AND fence = :fence AND delayed = :was_delayed

-- name: find_superseded
-- Returns waiting messages with the same collapse key that are older than the new one.
SELECT id FROM postroom_queue
 WHERE box = :box AND collapse_key = :collapse_key AND state = 1 AND id < :before AND id <> :id
 ORDER BY id

-- == settle ==

-- name: find_claim_by_name
-- Returns the messages with this message id, and the claim that the owner has on each.
SELECT m.source, q.id, q.fence
  FROM postroom_message m
  LEFT JOIN postroom_queue q ON q.id = m.id AND q.owner = :owner AND q.state = 2
 WHERE m.box = :box AND m.message_id = :message_id AND m.retired = 0

-- name: give_back
-- Ends a claim by retry or release. An outcome resets the count of lost leases.
UPDATE postroom_queue
   SET state = 1, owner = NULL, attempt = :attempt, available_at = :at, last_error = coalesce(:error, last_error),
       lost_leases = 0
 WHERE id = :id

-- name: make_dead
-- `group_id` is NULL, unless dead messages block their groups: the message leaves its line.
UPDATE postroom_queue
   SET state = 4, owner = NULL, available_at = NULL, died_at = :now, last_error = :error, group_id = :group_id,
       attempt = attempt + :counted, delayed = 0
 WHERE id = :id

-- name: leave_line
UPDATE postroom_queue SET group_id = NULL WHERE id = :id

-- name: set_error
UPDATE postroom_queue SET last_error = :error, attempt = attempt + :counted WHERE id = :id

-- == reap, replay ==

-- name: find_expired_leases
SELECT id FROM postroom_queue
 WHERE box = :box AND state = 2 AND available_at <= :now
 ORDER BY available_at, id
 LIMIT :limit

-- name: end_leases
-- Makes claimed messages wait whose leases have expired. They keep their place in the ready index.
UPDATE postroom_queue SET state = 1, owner = NULL, lost_leases = lost_leases + 1 WHERE id = :id

-- name: find_expired
-- Returns waiting messages that have expired.
SELECT id, group_id FROM postroom_queue
 WHERE box = :box AND expires <= :now AND state = 1
 ORDER BY expires, id
 LIMIT :limit

-- name: revive
-- A fence above 0 means that the message was claimed before. A message that died without a claim gets 1, so that a new
-- due time does not take it out of its line.
UPDATE postroom_queue
   SET state = 1, died_at = NULL, attempt = 0, deliveries = 0, lost_leases = 0, expires = NULL, group_id = :group_id,
       available_at = :at, fence = CASE WHEN fence = 0 THEN 1 ELSE fence END
 WHERE id = :id

-- name: clear_expires
UPDATE postroom_message SET expires = NULL WHERE id = :id

-- == find ==

-- name: find_nearby
-- Reads the next messages of all boxes in id order. A page is usually among them, however large the box is. `box || ''`
-- keeps the planner from an index by which it would read and sort all of the box.
SELECT e.*
  FROM postroom_entry e
 WHERE e.box || '' = :box AND e.id > :after
   AND e.id < (SELECT min(m.id) FROM postroom_message m WHERE m.id > :after) + :nearby
   AND (:topic IS NULL OR e.topic = :topic)
   AND (:source IS NULL OR e.source = :source)
   AND (:group_id IS NULL OR e.group_id = :group_id)
   AND (:correlation_id IS NULL OR e.correlation_id = :correlation_id)
   AND (:seen = 1 OR e.state <> 0) AND (:waiting = 1 OR e.state <> 1) AND (:claimed = 1 OR e.state <> 2)
   AND (:done = 1 OR e.state <> 3) AND (:dead = 1 OR e.state <> 4)
 ORDER BY e.id
 LIMIT :limit

-- name: find_in_box
-- Reads all of the box, for a page that is not nearby.
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
-- Dead letters have a separate index: they are few among many.
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

-- name: find_by_message_id
-- Returns every message that had this message id, with retired keys too.
SELECT e.* FROM postroom_entry e WHERE e.box = :box AND e.message_id = :message_id ORDER BY e.id

-- name: list_boxes
-- Goes from one box to the next by the index of keys, however many messages each has.
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

-- == order of a box ==

-- name: read_order
SELECT fifo FROM postroom_box WHERE box = :box

-- name: record_order
INSERT INTO postroom_box (box, fifo) VALUES (:box, :fifo) ON CONFLICT (box) DO NOTHING

-- name: change_order
INSERT INTO postroom_box (box, fifo) VALUES (:box, :fifo) ON CONFLICT (box) DO UPDATE SET fifo = excluded.fifo

-- == soft lease ==

-- name: take_soft_lease
-- For engines whose statement `attend` only reads. Another process may have taken the lease since.
UPDATE postroom_attendant SET process = :process, until = :now + :lease
 WHERE id = 1 AND (until IS NULL OR until <= :now OR (process = :process AND :lease <= 0))
RETURNING id

-- == joins ==

-- name: start_join
-- A second call with the same id, after the reply to the first was lost, changes nothing.
INSERT INTO postroom_join (id, number, box, tenant_id, expected_steps, metadata, deadline, created_at, updated_at)
VALUES (:id, :number, :box, :tenant_id, :expected_steps, :metadata, :deadline, :now, :now)
ON CONFLICT (id) DO NOTHING

-- name: find_join
-- The columns are those of JoinRow.
SELECT j.id, j.number, j.tenant_id, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps, j.status,
       j.sealed, j.fails, j.wait_id, j.metadata, j.deadline, j.created_at, j.updated_at, j.on_complete_topic,
       j.on_complete_payload, j.on_complete_format, j.on_fail_topic, j.on_fail_payload, j.on_fail_format
  FROM postroom_join j
 WHERE j.id = :id AND j.box = :box

-- name: find_joins
SELECT j.id, j.number, j.tenant_id, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps, j.status,
       j.sealed, j.fails, j.wait_id, j.metadata, j.deadline, j.created_at, j.updated_at, j.on_complete_topic,
       j.on_complete_payload, j.on_complete_format, j.on_fail_topic, j.on_fail_payload, j.on_fail_format
  FROM postroom_join j
 WHERE j.box = :box AND j.number > :after AND (:tenant_id IS NULL OR j.tenant_id = :tenant_id)
 ORDER BY j.number
 LIMIT :limit

-- name: find_steps
SELECT s.message_id, m.source, m.message_id, s.status, s.attached_at
  FROM postroom_step s
  LEFT JOIN postroom_message m ON m.id = s.message_id
 WHERE s.join_id = :join AND s.message_id > :after
 ORDER BY s.message_id
 LIMIT :limit

-- name: lock_message
SELECT id FROM postroom_message WHERE id = :id AND box = :box

-- name: lock_message_named
SELECT id FROM postroom_message WHERE box = :box AND message_id = :message_id AND source = :source AND retired = 0

-- name: insert_step
INSERT INTO postroom_join_member (join_id, message_id, attached_at) VALUES (:join_id, :message_id, :attached_at)
ON CONFLICT (join_id, message_id) DO NOTHING

-- name: add_steps
-- `updated_at` is the time at which the join has all its steps.
UPDATE postroom_join
   SET attached_steps = attached_steps + :count,
       updated_at = CASE WHEN attached_steps + :count = expected_steps THEN :now ELSE updated_at END
 WHERE id = :id

-- name: report_step
-- Ends a step whose message has not ended.
UPDATE postroom_join_member SET outcome = :outcome
 WHERE join_id = :join AND message_id = :id AND outcome IS NULL
   AND EXISTS (SELECT 1 FROM postroom_queue q WHERE q.id = :id AND q.state <> 4)
RETURNING message_id

-- name: begin_wait
UPDATE postroom_queue SET waits_for = :join WHERE id = :id

-- name: set_wait
UPDATE postroom_join
   SET wait_id = :wait_id, fails = :fails,
       on_complete_topic = :on_complete_topic, on_complete_payload = :on_complete_payload,
       on_complete_format = :on_complete_format,
       on_fail_topic = :on_fail_topic, on_fail_payload = :on_fail_payload, on_fail_format = :on_fail_format
 WHERE id = :id

-- name: wake_wait
UPDATE postroom_queue SET available_at = :now WHERE id = :id AND state = 1 AND waits_for IS NOT NULL

-- name: lock_wait
-- Returns the continuation if it waits for its join.
SELECT id FROM postroom_queue WHERE id = :id AND state = 1

-- name: watch_step
UPDATE postroom_queue SET watched = 1 WHERE id = :id

-- name: sleep_wait
UPDATE postroom_queue SET available_at = :at WHERE id = :id

-- name: seal_join
UPDATE postroom_join SET sealed = 1, updated_at = :now WHERE id = :id

-- name: end_join
-- The steps of an open join are counted when it ends.
UPDATE postroom_join
   SET status = :status, completed_steps = :completed, failed_steps = :failed, updated_at = :now,
       attached_steps = CASE WHEN expected_steps IS NULL THEN :attached ELSE attached_steps END
 WHERE id = :id

-- name: reopen_join
UPDATE postroom_join SET status = 0, completed_steps = NULL, failed_steps = NULL WHERE id = :id

-- name: set_follow_up
-- Gives a continuation the content that follows the end of its join.
UPDATE postroom_message SET topic = :topic, payload = :payload, format = :format WHERE id = :id

-- name: release_wait
UPDATE postroom_queue SET waits_for = NULL, available_at = :now WHERE id = :id
