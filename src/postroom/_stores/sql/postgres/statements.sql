-- Statements of PostgreSQL.
--
-- == The life of a row ==
--
-- A message is one row in postroom_message. While it is unfinished or dead it also has a row in postroom_queue; when it
-- is done, that row is deleted and postroom_ledger gets one. Columns of the queue row:
--
--   state         0 seen (only the key is known), 1 waiting, 2 claimed, 4 dead
--   available_at  a claim can take the row from this time on. NULL: the row sleeps, or is dead, or is only seen.
--                 Every claim finds rows by the ready index (box, available_at, id). A claim in a FIFO box moves it to
--                 the end of the lease; any other claim leaves it, and so is a HOT update.
--   lease_until   claimed: the end of the lease. No index has it.
--   owner, fence  claimed: by which worker, and the number of claims so far. Both prove a claim.
--   group_id      the FIFO group in whose line the row is. The line index is (box, group_id, id).
--   holds         claimed, in a line: equal to group_id. The held index (box, holds, id) finds the claims of a group.
--   delayed       the row has a due time, and is in its line only from available_at on
--
--   put             inserts the row: waiting, with a time
--   claim           waiting, or claimed with an expired lease → claimed
--   renew           claimed → claimed, with a later lease_until
--   settle          claimed → deleted (done), waiting (retry, release) or dead
--   reap            claimed with an expired lease → waiting; waiting and expired → dead
--   replay          dead → waiting
--
-- == How a FIFO claim works ==
--
-- Members of a group are in line in id order. A row is awake if it has an available_at, and sleeps if it has none. Of
-- the waiting members only the first in line is awake, so the ready index has one of them for each group, however long
-- its line is. (A second awake row does no harm: it is a candidate that must wait.)
--
-- A claim is one transaction of these statements. It repeats them until it has enough messages (FifoClaims in fifo.py):
--
--   1. find_candidates reads awake rows of the ready index, and takes an advisory lock on the group of each. A group
--      that another claim has locked is skipped. Until this transaction ends, no other claim takes from these groups.
--   2. read_lines reads the lines of these groups, in a snapshot that is younger than the advisory locks. So it sees
--      all that earlier claims of the groups have committed: which members are claimed, and which is the first. It
--      locks nothing.
--   3. claim_fronts locks the rows that FrontPicker has picked (FOR NO KEY UPDATE), skips rows that other transactions
--      have locked, and claims each front up to the first row that is locked or has changed. So no member is overtaken.
--   4. sleep_behind_first lets the candidates sleep that are not first in line. It locks the first FOR KEY SHARE, and
--      the candidates FOR NO KEY UPDATE, and skips both if they are locked.
--
-- == Why a sleeping row is always woken ==
--
-- (Why no wake-up of a worker is lost is in _runtime/store_workers.py.)
--
-- A sleeping row must be woken by the transaction that takes the first out of the line. Two transactions meet:
--
--   * sleep_behind_first locks the first in line FOR KEY SHARE before it lets a row sleep behind it.
--   * A transaction that takes a row out of its line (done, dead, superseded, cancelled, a new due time) deletes it or
--     locks it FOR UPDATE, which conflicts with FOR KEY SHARE. It calls promote in a later statement.
--
-- If the sleeper locks first, the leaving transaction waits for its commit, and promote, with a younger snapshot, sees
-- the sleeping row and wakes it. If the leaving transaction locks first, sleep_behind_first skips the locked row (SKIP
-- LOCKED), and the candidate stays awake. FOR KEY SHARE does not conflict with FOR NO KEY UPDATE, so neither delays a
-- renewal or a claim.
--
-- promote must not wait for row locks. If it finds the row to wake locked, it inserts a nudge: a row in postroom_nudge
-- that names the group. find_candidates returns nudges as candidates too, so the next claim reads the line of the
-- group, and sleep_behind_first deletes the nudge.
--
-- == Locks ==
--
--   * A queue row is locked before its message, and several rows in id order: no deadlocks.
--   * A claim waits for no lock: it uses SKIP LOCKED and pg_try_advisory_xact_lock.
--   * The caller's transaction may stay open for long. It locks no queue row that a worker needs, unless it must.
--   * Every statement needs READ COMMITTED: it reads what is committed when it begins.
--
-- == Plans ==
--
-- A plan is made once and kept, perhaps while a table was empty. A full scan then looks as cheap as an index scan. So
-- each statement is written such that only one plan is possible (docs/decisions/0014):
--
--   * Rows are found by `id = ANY (array)`, never by a join with an array. Values that belong to an id are in a second
--     array, at the same position. Ids are in ascending order, so width_bucket(id, ids), a binary search, is the
--     position.
--   * Other tables are read in a LATERAL subquery with LIMIT 1 (or OFFSET 0), which cannot become a hash or merge join.
--   * Where rows are read in the order of another index, `ORDER BY id` alone would suggest the primary key. `ORDER BY
--     box, id` with a box that is not compared by a plain `=`, or `id + 0`, excludes it. A row comparison as an upper
--     bound would do that too, but does not end an index scan.
--
-- Lists are arrays, or arrays as text (arrays.py), with one array for each column. `:now` is the time of the statement.
-- Each statement says why it is not the common one; "arrays" means: one statement for many rows in one round trip.

-- name: has_schema
-- Each engine has its own catalog.
SELECT 1 WHERE to_regclass('postroom_schema') IS NOT NULL

-- name: lock_schema
-- An advisory lock: a second migration waits for the first. The timeout limits how long a migration waits for a table,
-- since all statements on that table would wait behind it.
SELECT pg_advisory_xact_lock(hashtextextended('postroom_schema', 0)), set_config('lock_timeout', '5s', true)

-- name: current_time
-- The clock of the server is the same for all processes.
SELECT :now

-- name: reserve_ids
-- A sequence: it locks nothing, and gaps do no harm.
SELECT nextval('postroom_ids')

-- name: notify
-- Only PostgreSQL notifies. It sends a notification once per transaction, at the commit.
SELECT pg_notify(:channel, :box)

-- == put ==

-- name: put_plain
-- Puts messages without options in one round trip: ids, messages, queue rows and the notification. Ids are in the order
-- of the drafts. Messages are inserted in the order of their keys, so two bulk puts with common keys wait for each
-- other and do not deadlock. An array with one item stands for all rows. Returns one row: all ids, and those that were
-- not used because their keys are known.
WITH given AS MATERIALIZED (
    SELECT nextval('postroom_ids') AS id, d.message_id, d.payload, d.position,
           coalesce(d.source, (:source::text[])[1]) AS source, coalesce(d.topic, (:topic::text[])[1]) AS topic,
           coalesce(d.format, (:format::text[])[1]) AS format
      FROM unnest(:source::text[], :message_id::text::text[], :topic::text[], :payload::bytea[], :format::text[])
           WITH ORDINALITY AS d (source, message_id, topic, payload, format, position)
), new AS (
    INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
    SELECT id, :box, source, message_id, topic, payload, format, :now, :now
      FROM given
     ORDER BY message_id COLLATE "C", source COLLATE "C"
        ON CONFLICT (box, message_id, source, retired) DO NOTHING
    RETURNING id
), entered AS (
    INSERT INTO postroom_queue (id, box, state, available_at)
    SELECT id, :box, 1, :now FROM new
)
SELECT array(SELECT id FROM given ORDER BY position),
       CASE WHEN (SELECT count(*) FROM new) < (SELECT count(*) FROM given)
            THEN array(SELECT id FROM given EXCEPT SELECT id FROM new) END,
       (SELECT pg_notify(:channel, :box) WHERE :notify::boolean AND EXISTS (SELECT FROM new))

-- name: put
-- Like put_plain, for messages with any option. NULL instead of an array stands for NULL in all rows. A put locks no
-- row, so it does not know whether other members are in line before the new ones. Of several new members of a line, the
-- first is awake and the others sleep. A message with a due time is awake, too: it may join the line late. The first
-- claim finds out which of them must wait.
WITH given AS MATERIALIZED (
    SELECT nextval('postroom_ids') AS id, d.message_id, d.payload, d.position,
           coalesce(d.source, (:source::text[])[1]) AS source, coalesce(d.topic, (:topic::text[])[1]) AS topic,
           coalesce(d.format, (:format::text[])[1]) AS format,
           d.headers, <<d.{label}>>, d.group_id, d.collapse_key, d.hash, d.hash_algorithm, d.due, d.received_at,
           coalesce(d.expires, :now + d.lifetime) AS expires_at
      FROM unnest(:source::text[], :message_id::text::text[], :topic::text[], :payload::bytea[], :format::text[],
                  :headers::text[], <<:{label}::text[]>>, :group_id::text[], :collapse_key::text[], :hash::bytea[],
                  :hash_algorithm::text[], :due::timestamptz[], :expires::timestamptz[], :lifetime::interval[],
                  :received_at::timestamptz[])
           WITH ORDINALITY AS d (source, message_id, topic, payload, format, headers, <<{label}>>, group_id,
                                 collapse_key, hash, hash_algorithm, due, expires, lifetime, received_at, position)
), new AS (
    INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, headers, <<{label}>>, group_id,
                                  collapse_key, hash, hash_algorithm, due, expires, received_at, first_seen, last_seen)
    SELECT id, :box, source, message_id, topic, payload, format, headers, <<{label}>>, group_id,
           collapse_key, hash, hash_algorithm, due, expires_at, received_at, :now, :now
      FROM given
     ORDER BY message_id COLLATE "C", source COLLATE "C"
        ON CONFLICT (box, message_id, source, retired) DO NOTHING
    RETURNING id, due, CASE WHEN :fifo::boolean THEN group_id END AS line, collapse_key, expires
), entered AS (
    INSERT INTO postroom_queue (id, box, state, available_at, delayed, group_id, collapse_key, expires)
    SELECT id, :box, 1,
           CASE WHEN due > :now THEN due
                WHEN line IS NULL OR due IS NOT NULL THEN :now
                WHEN row_number() OVER (PARTITION BY line, due IS NULL ORDER BY id) = 1 THEN :now
           END,
           coalesce(due > :now AND line IS NOT NULL, false), line, collapse_key, expires
      FROM new
)
SELECT array(SELECT id FROM given ORDER BY position),
       CASE WHEN (SELECT count(*) FROM new) < (SELECT count(*) FROM given)
            THEN array(SELECT id FROM given EXCEPT SELECT id FROM new) END,
       (SELECT pg_notify(:channel, :box) WHERE :notify::boolean AND EXISTS (SELECT FROM new))

-- name: insert_message
-- Arrays.
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, headers, <<{label}>>, group_id,
                              collapse_key, hash, hash_algorithm, due, expires, received_at, first_seen, last_seen)
SELECT * FROM unnest(:id::bigint[], :box::text[], :source::text[], :message_id::text[], :topic::text[], :payload::bytea[],
                     :format::text[], :headers::text[], <<:{label}::text[]>>, :group_id::text[],
                     :collapse_key::text[], :hash::bytea[], :hash_algorithm::text[], :due::timestamptz[],
                     :expires::timestamptz[], :received_at::timestamptz[], :first_seen::timestamptz[],
                     :last_seen::timestamptz[])
ON CONFLICT (box, message_id, source, retired) DO NOTHING
RETURNING id

-- name: insert_plain_message
-- Arrays.
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
SELECT * FROM unnest(:id::bigint[], :box::text[], :source::text[], :message_id::text[], :topic::text[], :payload::bytea[],
                     :format::text[], :first_seen::timestamptz[], :last_seen::timestamptz[])
ON CONFLICT (box, message_id, source, retired) DO NOTHING
RETURNING id

-- name: enqueue
-- Arrays.
INSERT INTO postroom_queue (id, box, state, available_at, delayed, group_id, collapse_key, expires)
SELECT * FROM unnest(:id::bigint[], :box::text[], :state::smallint[], :available_at::timestamptz[], :delayed::boolean[],
                     :group_id::text[], :collapse_key::text[], :expires::timestamptz[])
RETURNING id

-- name: lock_collapse_keys
-- Only PostgreSQL has writers at the same time. Two puts that collapse the same key at the same time would not see each
-- other's message; an advisory lock per key lets the second wait for the first. A server has memory for a few thousand
-- advisory locks, so keys share 256 per box, which are locked in ascending order. The waiting rows of these keys are
-- locked before, in id order: a transaction that has locked one of them may wait for the advisory lock next.
WITH found AS MATERIALIZED (
    SELECT w.id
      FROM unnest(:keys::text[]) AS k (collapse_key)
      CROSS JOIN LATERAL (
            SELECT q.id FROM postroom_queue q
             WHERE q.box = :box AND q.collapse_key = k.collapse_key AND q.state = 1 OFFSET 0) w
), rows AS MATERIALIZED (
    SELECT id FROM postroom_queue WHERE id = ANY (ARRAY (SELECT id FROM found)) AND state = 1 ORDER BY id FOR UPDATE
)
SELECT pg_advisory_xact_lock(hashtext('postroom_queue collapse ' || :box), bucket)
  FROM (SELECT DISTINCT hashtext(k) & 255 AS bucket FROM unnest(:keys::text[]) AS k ORDER BY 1) AS buckets
 WHERE (SELECT count(*) FROM rows) >= 0

-- name: lock_keys
-- Only PostgreSQL locks rows. Locks the messages of several known keys in id order, so two transactions with the same
-- keys do not deadlock. With `progress` it locks their queue rows first.
WITH k AS MATERIALIZED (
    SELECT m.id
      FROM unnest(:source::text[], :message_id::text[]) AS k (source, message_id)
      CROSS JOIN LATERAL (
            SELECT m.id FROM postroom_message m
             WHERE m.box = :box AND m.message_id = k.message_id AND m.source = k.source AND m.retired = 0
             LIMIT 1) m
), q AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE id = ANY (ARRAY (SELECT id FROM k)) AND :progress::boolean
     ORDER BY id
       FOR UPDATE
)
SELECT id FROM postroom_message
 WHERE id = ANY (ARRAY (SELECT id FROM k)) AND (SELECT count(*) FROM q) >= 0
 ORDER BY id
   FOR UPDATE

-- name: lock_key
-- Like find_key, and locks: the queue row, then the message. A worker waits with its settlement until this transaction
-- ends. m is read after q has been counted, so the locks are taken in this order.
WITH k AS MATERIALIZED (
    SELECT id FROM postroom_message WHERE box = :box AND message_id = :message_id AND source = :source AND retired = 0
), q AS MATERIALIZED (
    SELECT id, state, group_id, available_at, fence, delayed
      FROM postroom_queue
     WHERE id = (SELECT id FROM k)
       FOR UPDATE
), m AS MATERIALIZED (
    SELECT id, message_id, hash, hash_algorithm, first_seen, revision, group_id, topic
      FROM postroom_message
     WHERE id = (SELECT id FROM k) AND retired = 0 AND (SELECT count(*) FROM q) >= 0
       FOR UPDATE
)
SELECT m.id, coalesce(q.state, 3)::integer, m.hash, m.hash_algorithm, m.first_seen, m.revision, m.group_id, m.topic,
       q.group_id, q.available_at, q.fence, q.delayed,
       EXISTS (SELECT FROM postroom_join j
                WHERE j.id = CASE WHEN m.message_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                  THEN m.message_id::uuid END
                  AND j.wait_id = m.id)
  FROM m LEFT JOIN q ON q.id = m.id

-- name: lock_message_of_key
-- Like lock_key, for a transaction that may stay open: a waiting or claimed queue row is read and not locked, so a
-- worker can claim and settle it. Rows that no worker needs (seen, dead) are locked. The state is NULL if the row
-- changed while the statement ran: the caller then repeats it.
WITH k AS MATERIALIZED (
    SELECT id FROM postroom_message WHERE box = :box AND message_id = :message_id AND source = :source AND retired = 0
), idle AS MATERIALIZED (
    SELECT id, state, group_id, available_at, fence, delayed
      FROM postroom_queue
     WHERE id = (SELECT id FROM k) AND state IN (0, 4)
       FOR UPDATE
), m AS MATERIALIZED (
    SELECT id, message_id, hash, hash_algorithm, first_seen, revision, group_id, topic
      FROM postroom_message
     WHERE id = (SELECT id FROM k) AND retired = 0 AND (SELECT count(*) FROM idle) >= 0
       FOR UPDATE
), busy AS MATERIALIZED (
    SELECT id, state, group_id, available_at, fence, delayed
      FROM postroom_queue
     WHERE id = (SELECT id FROM m) AND state IN (1, 2)
)
SELECT m.id,
       coalesce(idle.state, busy.state,
                CASE WHEN EXISTS (SELECT FROM postroom_ledger l WHERE l.id = m.id) THEN 3 END)::integer,
       m.hash, m.hash_algorithm, m.first_seen, m.revision, m.group_id, m.topic,
       coalesce(idle.group_id, busy.group_id), coalesce(idle.available_at, busy.available_at),
       coalesce(idle.fence, busy.fence), coalesce(idle.delayed, busy.delayed),
       EXISTS (SELECT FROM postroom_join j
                WHERE j.id = CASE WHEN m.message_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                  THEN m.message_id::uuid END
                  AND j.wait_id = m.id)
  FROM m
  LEFT JOIN idle ON idle.id = m.id
  LEFT JOIN busy ON busy.id = m.id

-- name: replace_content
-- Booleans are not numbers here, and IS DISTINCT FROM compares NULLs.
UPDATE postroom_message
   SET topic = :topic, payload = :payload, format = :format, headers = :headers, <<{label} = :{label}>>,
       hash = :hash, hash_algorithm = :hash_algorithm, due = :due, expires = coalesce(:expires, expires),
       revision = revision + (topic <> :topic OR payload <> :payload OR format <> :format
                              OR hash IS DISTINCT FROM :hash)::integer
 WHERE id = :id
RETURNING revision

-- name: reschedule
-- A row that gets a due time leaves its line until then, so it is locked FOR UPDATE first: see sleep_behind_first.
WITH locked AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE id = :id AND state = 1 AND fence = :fence AND delayed = :was_delayed
       FOR UPDATE
)
UPDATE postroom_queue SET available_at = :available_at, delayed = :delayed
 WHERE id = ANY (ARRAY (SELECT id FROM locked))

-- name: find_superseded
-- Locks the rows FOR UPDATE and waits for locks. If a claim had locked a row, it is claimed now and stays; if another
-- transaction had locked it, it is superseded. `id + 0` excludes the primary key.
SELECT id FROM postroom_queue
 WHERE box = :box AND collapse_key = :collapse_key AND state = 1 AND id + 0 < :before AND id <> :id
 ORDER BY id + 0
   FOR UPDATE

-- == begin ==

-- name: begin
-- Inserts records of a guard as claimed, with their queue rows, in one round trip. In the order of their keys, as
-- put_plain. Fences and deliveries begin with 1. An array with one item stands for all rows. A lease of NULL has no end.
-- Returns the id and the end of the lease of each, and whether its key was new.
WITH given AS MATERIALIZED (
    SELECT nextval('postroom_ids') AS id, d.position, d.message_id, d.hash, d.hash_algorithm, d.owner,
           coalesce(d.source, (:source::text[])[1]) AS source, coalesce(d.topic, (:topic::text[])[1]) AS topic,
           coalesce(:now + d.lease, :no_end) AS lease_until
      FROM unnest(:source::text[], :message_id::text::text[], :topic::text[], :hash::bytea[], :hash_algorithm::text[],
                  :owner::uuid[], :lease::interval[])
           WITH ORDINALITY AS d (source, message_id, topic, hash, hash_algorithm, owner, lease, position)
), new AS (
    INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, hash, hash_algorithm,
                                  first_seen, last_seen)
    SELECT id, :box, source, message_id, topic, '', 'text', hash, hash_algorithm, :now, :now
      FROM given
     ORDER BY message_id COLLATE "C", source COLLATE "C"
        ON CONFLICT (box, message_id, source, retired) DO NOTHING
    RETURNING id
), entered AS (
    INSERT INTO postroom_queue (id, box, state, available_at, lease_until, owner, fence, deliveries)
    SELECT id, :box, 2, :now, lease_until, owner, 1, 1 FROM given WHERE id IN (SELECT id FROM new)
)
SELECT id, lease_until, id IN (SELECT id FROM new) FROM given ORDER BY position

-- name: lock_records
-- Reads the records that have these keys, and locks their queue rows in id order. A record whose queue row was deleted
-- while the statement waited has no state, and the caller repeats the statement. Done records are not locked: they
-- do not change any more. The columns are those of postroom_entry, then hash_algorithm and the time.
WITH k AS MATERIALIZED (
    SELECT m.id
      FROM unnest(:source::text[], :message_id::text::text[]) AS k (source, message_id)
      CROSS JOIN LATERAL (
            SELECT m.id FROM postroom_message m
             WHERE m.box = :box AND m.message_id = k.message_id AND m.source = k.source AND m.retired = 0
             LIMIT 1) m
), q AS MATERIALIZED (
    SELECT id, state, attempt, deliveries, last_error, owner, fence, lease_until, available_at, died_at, group_id,
           lost_leases, waits_for
      FROM postroom_queue
     WHERE id = ANY (ARRAY (SELECT id FROM k))
     ORDER BY id
       FOR NO KEY UPDATE
)
SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, <<m.{label}>>, m.group_id, m.collapse_key,
       m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       coalesce(q.state, CASE WHEN l.id IS NOT NULL THEN 3 END)::integer, coalesce(q.attempt, l.attempt),
       coalesce(q.deliveries, l.deliveries), coalesce(q.last_error, l.last_error), q.owner, q.fence,
       CASE q.state WHEN 2 THEN q.lease_until ELSE q.available_at END, coalesce(q.died_at, l.completed_at),
       l.completed_by, l.ending, q.group_id, m.box, q.lost_leases, q.waits_for, m.hash_algorithm, :now
  FROM k
  CROSS JOIN LATERAL (SELECT * FROM postroom_message m WHERE m.id = k.id LIMIT 1) m
  LEFT JOIN q ON q.id = k.id
  LEFT JOIN LATERAL (SELECT * FROM postroom_ledger l WHERE l.id = k.id LIMIT 1) l ON q.id IS NULL

-- name: claim_records
-- Arrays. available_at is in the past, so that a reap finds the lease when it has ended.
UPDATE postroom_queue q
   SET state = 2, owner = (:owner::uuid[])[width_bucket(q.id, :id::bigint[])], fence = q.fence + 1,
       deliveries = q.deliveries + 1, lost_leases = q.lost_leases + (q.state = 2)::integer, delayed = false, stale = 0,
       lease_until = (:until::timestamptz[])[width_bucket(q.id, :id::bigint[])], available_at = :now
 WHERE q.id = ANY (:id::bigint[])

-- name: see_records
-- Arrays.
UPDATE postroom_message SET last_seen = :now WHERE id = ANY (:id::bigint[])

-- == claim ==

-- name: exchange
-- Settles successes and claims from a box without order: one round trip, one commit. A claim is an exchange that
-- settles nothing. Only PostgreSQL can change several tables with one statement.
--
--   * `gone` deletes the settled rows. It locks them in id order, and waits for a transaction that has locked one of
--     them.
--   * `due` locks claimable rows, and skips rows that other transactions have locked. So two claims never take the same
--     row, and never wait for each other. It begins behind :since and :after (frontier.py). It is materialized:
--     otherwise the planner might run it once for each row, and lock more rows than :limit.
--   * A suspect (see is_suspect in the kernel) is claimed alone, if it is the first deliverable row.
--   * Undeliverable rows are only reported. The program makes them dead.
--   * Watched steps of joins are not settled, and continuations are only reported: the program does the rest.
--
-- The first row has only the column `report` (see Report in exchange.py). The others are the claimed messages.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences
), gone AS (
    DELETE FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.owner = :owner AND q.state = 2 AND q.watched IS NULL
    RETURNING q.id, q.owner, q.attempt, q.deliveries, q.last_error, q.group_id
), kept AS (
    INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
    SELECT id, :box, :now, owner, 'handled', attempt, deliveries, last_error FROM gone
), due AS MATERIALIZED (
    SELECT q.id, q.available_at,
           (q.expires IS NULL OR q.expires > :now)
               AND (:max_deliveries::integer IS NULL OR q.deliveries < :max_deliveries)
               AND (:max_lost_leases::integer IS NULL OR q.lost_leases + (q.state = 2)::integer < :max_lost_leases)
               AND q.waits_for IS NULL
               AS deliverable,
           q.waits_for IS NOT NULL AS waits,
           q.lost_leases + (q.state = 2)::integer
               >= CASE WHEN q.deliveries + 1 >= :max_deliveries THEN 1 ELSE :suspect_from::integer END AS suspect
      FROM postroom_queue q
     WHERE q.box = :box AND q.available_at <= :now
       AND (q.available_at, q.id) > (coalesce(:since, '-infinity'::timestamptz), :after::bigint)
       AND (q.state = 1 OR q.lease_until <= :now)
       AND NOT (q.state = 2 AND q.owner = :owner AND q.id = ANY ((SELECT ids FROM given)::bigint[]))  -- just settled
       AND q.id <> ALL (:in_hand::bigint[])
       AND (:suspects::integer = 1
            OR q.lost_leases + (q.state = 2)::integer
                < CASE WHEN q.deliveries + 1 >= :max_deliveries THEN 1 ELSE :suspect_from::integer END
            OR q.deliveries >= :max_deliveries OR q.lost_leases + (q.state = 2)::integer >= :max_lost_leases
            OR q.expires <= :now)
       AND (:topics::text[] IS NULL OR q.waits_for IS NOT NULL
            OR (SELECT topic FROM postroom_message m WHERE m.id = q.id) = ANY (:topics))
     ORDER BY q.available_at, q.id
     LIMIT :limit
       FOR NO KEY UPDATE SKIP LOCKED
), lone_suspect AS MATERIALIZED (
    SELECT first.id
      FROM (SELECT id, suspect FROM due WHERE deliverable ORDER BY available_at, id LIMIT 1) AS first
     WHERE first.suspect
), taken AS (
    -- group_id is NULL here, unless the box was FIFO before.
    UPDATE postroom_queue q
       SET state = 2, owner = :owner, fence = q.fence + 1, delayed = false, deliveries = q.deliveries + 1,
           lost_leases = q.lost_leases + (q.state = 2)::integer, lease_until = :now + :lease::interval, stale = 0,
           holds = q.group_id
     WHERE q.id = ANY (CASE WHEN EXISTS (SELECT FROM lone_suspect) THEN ARRAY (SELECT id FROM lone_suspect)
                            ELSE ARRAY (SELECT id FROM due WHERE deliverable AND NOT suspect) END)
    RETURNING q.id, q.available_at, q.attempt, q.deliveries, q.last_error, q.fence, q.lost_leases
)
(SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, <<NULL>>, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL,
        json_build_object(
            'read_to', (SELECT max(available_at) FROM due),
            'lease_until', :now + :lease::interval,
            'suspects', (SELECT count(*) FROM due WHERE deliverable AND suspect),
            'took_suspect', EXISTS (SELECT FROM lone_suspect),
            'settled', array(SELECT id FROM gone),
            'undeliverable', array(SELECT id FROM due WHERE NOT deliverable AND NOT waits),
            'waits', array(SELECT id FROM due WHERE waits),
            'groups', array(SELECT DISTINCT group_id FROM gone WHERE group_id IS NOT NULL))::text AS report)
UNION ALL
(SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, <<m.{label}>>, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       t.attempt, t.deliveries, t.last_error, t.fence, t.lost_leases, NULL
  FROM taken t
  CROSS JOIN LATERAL (SELECT * FROM postroom_message m WHERE m.id = t.id LIMIT 1) m
 ORDER BY t.available_at, t.id)

-- name: lock_undeliverable
-- Only PostgreSQL locks rows. Locks undeliverable rows and their messages, and checks them again: a lease may have been
-- renewed since they were read. Skips locked rows and messages, which a later claim finds: a claim waits for no lock,
-- and discarding a message writes to it. The coalesce() excludes the ready index.
SELECT q.id, q.group_id, coalesce(q.expires <= :now, false)
  FROM postroom_queue q
  CROSS JOIN LATERAL (
        SELECT m.id FROM postroom_message m WHERE m.id = q.id LIMIT 1 FOR UPDATE SKIP LOCKED) m
 WHERE q.id = ANY (:ids::bigint[]) AND coalesce(q.available_at, '-infinity') <= :now
   AND (q.state = 1 OR q.lease_until <= :now)
   AND (q.expires <= :now OR q.deliveries >= :max_deliveries::integer
        OR q.lost_leases + (q.state = 2)::integer >= :max_lost_leases::integer)
 ORDER BY q.id
   FOR UPDATE OF q SKIP LOCKED

-- name: find_candidates
-- Step 1 of a FIFO claim: awake rows of the ready index, and nudged groups.
--
--   * It takes an advisory lock on the group of each row, until this transaction ends, and skips groups that another
--     claim has locked. So one claim at a time takes from a group.
--   * It locks no rows: other transactions can settle or renew what this claim does not take.
--   * The inner LIMIT bounds how many skipped groups are read. It also keeps the planner from evaluating the lock
--     function for rows that are not wanted.
--   * The last column is false if the transaction keeps its snapshot: read_lines could then not see the current rows.
SELECT h.id, h.group_id, h.expires, h.deliveries, h.lost_leases, :now, h.waits,
       (current_setting('transaction_isolation') = 'read committed')::integer
  FROM ((SELECT n.id, n.group_id, NULL::timestamptz AS expires, 0 AS deliveries, 0 AS lost_leases, false AS waits
           FROM postroom_nudge n
          WHERE n.box = :box AND n.id <> ALL (:read_before::bigint[])
          ORDER BY n.id
          LIMIT :limit + 1000)
        UNION ALL
        (SELECT q.id, q.group_id, q.expires, q.deliveries, q.lost_leases + (q.state = 2)::integer,
                q.waits_for IS NOT NULL
           FROM postroom_queue q
          WHERE q.box = :box AND q.available_at <= :now AND (q.state = 1 OR q.lease_until <= :now)
            AND q.id <> ALL (:read_before::bigint[])
            AND (:topics::text[] IS NULL OR q.waits_for IS NOT NULL
                 OR (SELECT topic FROM postroom_message m WHERE m.id = q.id) = ANY (:topics))
          ORDER BY q.available_at, q.id
          LIMIT :limit + 1000)) h
 WHERE h.group_id IS NULL
    OR pg_try_advisory_xact_lock(hashtextextended('postroom_queue line ' || :box || ' ' || h.group_id, 0))
 LIMIT :limit

-- name: read_lines
-- Step 2 of a FIFO claim: the lines of groups from their fronts, in the order of the groups. The columns are those of
-- Member. The groups are locked by find_candidates, and this snapshot is younger than the locks.
--
--   * It reads at most :limit rows in total, and of a held group only the first in line.
--   * A line without members has one row with id 0.
--   * The last column is true if a member is claimed. If no member holds the group, these leases have expired, and
--     claim_fronts must end them.
SELECT g.group_id, holder.id, coalesce(l.id, 0), coalesce(l.state, 0)::integer, l.available_at,
       coalesce(l.delayed, false), l.expires, coalesce(l.deliveries, 0),
       coalesce(l.lost_leases + (l.state = 2)::integer, 0), coalesce(l.topic, ''), claimed.id IS NOT NULL
  FROM unnest(:groups::text[]) AS g (group_id)
  LEFT JOIN LATERAL (
            SELECT q.id FROM postroom_queue q WHERE q.box = :box AND q.holds = g.group_id LIMIT 1) claimed ON true
  LEFT JOIN LATERAL (
            SELECT q.id FROM postroom_queue q
             WHERE claimed.id IS NOT NULL AND q.box = :box AND q.holds = g.group_id
               AND (q.lease_until > :now OR q.id = ANY (:in_hand::bigint[]))
             LIMIT 1) holder ON true
  LEFT JOIN LATERAL (
            SELECT q.id, q.state, q.available_at, q.delayed, q.expires, q.deliveries, q.lost_leases,
                   CASE WHEN :with_topics::boolean
                        THEN (SELECT topic FROM postroom_message m WHERE m.id = q.id) END AS topic
              FROM postroom_queue q
             WHERE q.box = ANY (ARRAY[:box]) AND q.group_id = g.group_id
               AND NOT (q.delayed AND q.available_at > :now)
             ORDER BY q.box, q.id
             LIMIT CASE WHEN holder.id IS NULL THEN :limit ELSE 1 END) l ON true
 LIMIT :limit

-- name: claim_fronts
-- Step 3 of a FIFO claim: claims the picked fronts, and rows without a group. The groups are locked by find_candidates,
-- so no other claim has taken from them. But since they were read, members may have been settled, renewed or put again,
-- or other transactions have locked them for that.
--
--   * `locked` locks the picked rows that can still be claimed, and skips locked ones. :numbers has the number of each
--     row in its front (NULL: no group), and `counted` its rank among the locked rows of its group. If the two differ,
--     a row before it was skipped, and the front ends there. So no member is overtaken.
--   * :groups_with_claims are groups whose leases had all expired when they were read. `expired` locks these leases. If
--     one of them was renewed since, or is locked, the group is left alone (`renewed`).
--   * `ended` releases the claims behind the rows that are claimed now: the earlier worker has lost the whole group.
--     The released rows sleep. The first in line is claimed by this statement, so it cannot leave before the commit.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :numbers::text::integer[] AS numbers, :positions::text::integer[] AS positions
), claimed AS MATERIALIZED (
    SELECT g.group_id, b.id
      FROM unnest(:groups_with_claims::text[]) AS g (group_id)
      CROSS JOIN LATERAL (
            SELECT b.id FROM postroom_queue b WHERE b.box = :box AND b.holds = g.group_id OFFSET 0) b
), expired AS MATERIALIZED (
    SELECT q.id FROM postroom_queue q
     WHERE q.id = ANY (ARRAY (SELECT id FROM claimed)) AND q.state = 2 AND q.lease_until <= :now
       FOR NO KEY UPDATE OF q SKIP LOCKED
), renewed AS MATERIALIZED (
    SELECT group_id FROM claimed WHERE id NOT IN (SELECT id FROM expired)
), locked AS MATERIALIZED (
    SELECT q.id, q.group_id, ((SELECT numbers FROM given))[width_bucket(q.id, (SELECT ids FROM given))] AS number
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND (q.available_at IS NULL OR q.available_at <= :now) AND (q.state = 1 OR q.lease_until <= :now)
       AND coalesce(q.group_id, '') <> ALL (ARRAY (SELECT group_id FROM renewed))
       FOR NO KEY UPDATE OF q SKIP LOCKED
), counted AS MATERIALIZED (
    SELECT l.id, l.number, row_number() OVER (PARTITION BY l.group_id, l.number IS NULL ORDER BY l.number) AS rank
      FROM locked l
), taken AS (
    UPDATE postroom_queue q
       SET state = 2, owner = :owner, fence = q.fence + 1, delayed = false, deliveries = q.deliveries + 1,
           lost_leases = q.lost_leases + (q.state = 2)::integer, lease_until = :until, available_at = :until, stale = 0,
           holds = q.group_id
     WHERE q.id = ANY (ARRAY (SELECT id FROM counted WHERE number IS NULL OR rank = number))
    RETURNING q.id, q.attempt, q.deliveries, q.last_error, q.fence, q.lost_leases, q.group_id,
              width_bucket(q.id, (SELECT ids FROM given)) AS n
), ended AS (
    UPDATE postroom_queue q SET state = 1, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL
     WHERE q.state = 2 AND q.id = ANY (ARRAY (
            SELECT c.id FROM claimed c
             WHERE c.id > (SELECT max(t.id) FROM taken t WHERE t.group_id = c.group_id)))
)
SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, <<m.{label}>>, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       t.attempt, t.deliveries, t.last_error, t.fence, t.lost_leases
  FROM taken t
  CROSS JOIN LATERAL (SELECT * FROM postroom_message m WHERE m.id = t.id LIMIT 1) m
 ORDER BY ((SELECT positions FROM given))[t.n]

-- name: sleep_behind_first
-- Step 4 of a FIFO claim: lets candidates sleep until the first in their line leaves.
--
--   * `first_locked` locks the first FOR KEY SHARE, so it cannot leave before this transaction commits. The transaction
--     that takes it out of the line then sees the sleeping rows, and wakes the next.
--   * The first must be in line and awake, or dead in its line. If it is not, or if it is locked by a transaction that
--     is about to take it out of the line, the candidate stays awake.
--   * A nudge is deleted here, since this claim has looked at its group; also if the line has no members (:first is 0).
WITH first_locked AS MATERIALIZED (
    SELECT s.id, s.first, first.group_id
      FROM unnest(:id::bigint[], :first::bigint[]) AS s (id, first)
      CROSS JOIN LATERAL (
            SELECT a.group_id FROM postroom_queue a
             WHERE a.id = s.first
               AND (a.state = 4 OR a.available_at IS NOT NULL AND NOT (a.delayed AND a.available_at > :now))
             LIMIT 1
               FOR KEY SHARE SKIP LOCKED) first
), sleepers AS MATERIALIZED (
    SELECT q.id
      FROM first_locked b
      CROSS JOIN LATERAL (
            SELECT q.id FROM postroom_queue q
             WHERE q.id = b.id AND q.id > b.first AND coalesce(q.group_id, '') = b.group_id
               AND coalesce(q.available_at, 'infinity') <= :now AND (q.state = 1 OR q.lease_until <= :now)
             LIMIT 1
               FOR NO KEY UPDATE SKIP LOCKED) q
), spent AS MATERIALIZED (
    SELECT n.id
      FROM first_locked b
      CROSS JOIN LATERAL (SELECT n.id, n.group_id FROM postroom_nudge n WHERE n.id = b.id LIMIT 1) n
     WHERE n.group_id = b.group_id
), nudges AS (
    DELETE FROM postroom_nudge n
     WHERE n.id = ANY (ARRAY (
            SELECT id FROM spent
             UNION ALL
            SELECT s.id FROM unnest(:id::bigint[], :first::bigint[]) AS s (id, first) WHERE s.first = 0))
)
UPDATE postroom_queue q
   SET state = 1, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL, delayed = false
 WHERE q.id = ANY (ARRAY (SELECT id FROM sleepers))

-- name: renew
-- Only PostgreSQL locks rows. Returns the valid claims, and whether each was renewed. Skips rows that other
-- transactions have locked, so one locked row does not delay the others; renew_and_wait then waits for it. A row in a
-- line has the end of its lease in available_at too. In this and the next statements, an array of owners with one item
-- stands for all claims.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences, :owners::text::uuid[] AS owners
), held AS MATERIALIZED (
    SELECT q.id
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.state = 2
       AND q.owner = coalesce(((SELECT owners FROM given))[width_bucket(q.id, (SELECT ids FROM given))],
                              ((SELECT owners FROM given))[1])
), free AS MATERIALIZED (
    SELECT q.id
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.state = 2
       AND q.owner = coalesce(((SELECT owners FROM given))[width_bucket(q.id, (SELECT ids FROM given))],
                              ((SELECT owners FROM given))[1])
       FOR NO KEY UPDATE OF q SKIP LOCKED
), renewed AS (
    UPDATE postroom_queue q
       SET lease_until = :until, available_at = CASE WHEN q.holds IS NULL THEN q.available_at ELSE :until END
     WHERE q.id = ANY (ARRAY (SELECT id FROM free))
    RETURNING q.id
)
SELECT id, id IN (SELECT id FROM renewed) FROM held

-- name: renew_and_wait
-- Like renew, and waits for locked rows, in id order. The driver sets a lock timeout.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences, :owners::text::uuid[] AS owners
), held AS MATERIALIZED (
    SELECT q.id
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.state = 2
       AND q.owner = coalesce(((SELECT owners FROM given))[width_bucket(q.id, (SELECT ids FROM given))],
                              ((SELECT owners FROM given))[1])
     ORDER BY q.id
       FOR NO KEY UPDATE OF q
)
UPDATE postroom_queue q
   SET lease_until = :until, available_at = CASE WHEN q.holds IS NULL THEN q.available_at ELSE :until END
 WHERE q.id = ANY (ARRAY (SELECT id FROM held))
RETURNING q.id, true

-- name: promote
-- Wakes the first in each line, if it sleeps. It waits for no lock, since it runs in transactions that hold locks.
--
--   * `first` is the first in line. `unlocked` is the first that no other transaction is about to take out of the line.
--     It is locked FOR KEY SHARE, so it cannot leave before this transaction commits.
--   * `unlocked` is woken if it sleeps. If it is not the first, this does no harm: a claim lets it sleep again.
--   * The group gets a nudge if all rows of the line are locked, if the row to wake is locked, or if the first sleeps
--     and is locked. An insert needs no row lock, so a nudge cannot be skipped.
--   * A transaction that keeps its snapshot always inserts a nudge: it does not see which rows sleep.
WITH read AS MATERIALIZED (
    SELECT g.group_id, first.id AS first, first.sleeps, unlocked.id AS unlocked, unlocked.sleeps AS unlocked_sleeps
      FROM unnest(:groups::text[]) AS g (group_id)
      LEFT JOIN LATERAL (
            SELECT q.id, q.state = 1 AND q.available_at IS NULL AS sleeps
              FROM postroom_queue q
             WHERE q.box = ANY (ARRAY[:box]) AND q.group_id = g.group_id
               AND NOT (q.delayed AND q.available_at > :now)
             ORDER BY q.box, q.id
             LIMIT 1) first ON true
      LEFT JOIN LATERAL (
            SELECT q.id, q.state = 1 AND q.available_at IS NULL AS sleeps
              FROM postroom_queue q
             WHERE q.box = ANY (ARRAY[:box]) AND q.group_id = g.group_id
               AND NOT (q.delayed AND q.available_at > :now)
             ORDER BY q.box, q.id
             LIMIT 1
               FOR KEY SHARE SKIP LOCKED) unlocked ON true
), sleeper AS MATERIALIZED (
    SELECT q.id FROM postroom_queue q
     WHERE q.id = ANY (ARRAY (SELECT unlocked FROM read WHERE unlocked_sleeps)) AND q.state = 1
       AND coalesce(q.available_at, 'infinity') = 'infinity'  -- IS NULL would suggest another index
       FOR NO KEY UPDATE SKIP LOCKED
), nudged AS (
    INSERT INTO postroom_nudge (id, box, group_id)
    SELECT nextval('postroom_ids'), :box, group_id
      FROM read
     WHERE first IS NOT NULL
           AND (unlocked IS NULL OR sleeps AND first <> unlocked
                OR unlocked_sleeps AND unlocked NOT IN (SELECT id FROM sleeper))
        OR current_setting('transaction_isolation') <> 'read committed'
)
UPDATE postroom_queue q SET available_at = :now
 WHERE q.id = ANY (ARRAY (SELECT id FROM sleeper))

-- == settle ==

-- name: find_claim_by_name
-- A LATERAL subquery: a join might read all of the queue.
SELECT m.source, q.id, q.fence
  FROM postroom_message m
  LEFT JOIN LATERAL (
        SELECT q.id, q.fence FROM postroom_queue q
         WHERE q.id = m.id AND q.owner = :owner AND q.state = 2 LIMIT 1) q ON true
 WHERE m.box = :box AND m.message_id = :message_id AND m.retired = 0

-- name: find_valid_claims
-- Arrays, and locks: the rows are locked FOR UPDATE in id order, so the claims stay valid until this transaction ends.
-- The columns are those of ValidClaim.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences, :owners::text::uuid[] AS owners
)
SELECT q.id, q.attempt, q.group_id, q.stale
  FROM postroom_queue q
 WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
   AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
   AND q.box = :box AND q.state = 2
   AND q.owner = coalesce(((SELECT owners FROM given))[width_bucket(q.id, (SELECT ids FROM given))],
                          ((SELECT owners FROM given))[1])
 ORDER BY q.id
   FOR UPDATE OF q

-- name: end_batch
-- Arrays. The claims of a group are found by the held index. The released rows sleep: the caller has locked the row
-- before them FOR UPDATE (find_valid_claims), and calls promote in a later statement.
UPDATE postroom_queue q SET state = 1, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL
 WHERE q.state = 2 AND q.id = ANY (ARRAY (
        SELECT behind.id
          FROM unnest(:box::text[], :group_id::text[], :id::bigint[]) AS e (box, group_id, id)
          CROSS JOIN LATERAL (
                SELECT b.id FROM postroom_queue b
                 WHERE b.box = e.box AND b.holds = e.group_id AND b.id > e.id OFFSET 0) behind))

-- name: give_back
-- Arrays.
UPDATE postroom_queue q
   SET state = 1, owner = NULL, lease_until = NULL, holds = NULL, lost_leases = 0,
       attempt = (:attempt::integer[])[width_bucket(q.id, :id::bigint[])],
       available_at = (:at::timestamptz[])[width_bucket(q.id, :id::bigint[])],
       last_error = coalesce((:error::text[])[width_bucket(q.id, :id::bigint[])], q.last_error)
 WHERE q.id = ANY (:id::bigint[])

-- name: make_dead
-- Arrays. A row that leaves its line is locked FOR UPDATE first: see sleep_behind_first.
WITH locked AS MATERIALIZED (
    SELECT id FROM postroom_queue WHERE id = ANY (:id::bigint[]) ORDER BY id FOR UPDATE
)
UPDATE postroom_queue q
   SET state = 4, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL, died_at = :now,
       last_error = (:error::text[])[width_bucket(q.id, :id::bigint[])],
       group_id = (:group_id::text[])[width_bucket(q.id, :id::bigint[])],
       attempt = q.attempt + (:counted::integer[])[width_bucket(q.id, :id::bigint[])], delayed = false
 WHERE q.id = ANY (ARRAY (SELECT id FROM locked))

-- name: set_error
-- Arrays.
UPDATE postroom_queue q
   SET last_error = (:error::text[])[width_bucket(q.id, :id::bigint[])],
       attempt = q.attempt + (:counted::integer[])[width_bucket(q.id, :id::bigint[])]
 WHERE q.id = ANY (:id::bigint[])

-- name: complete
-- Deletes queue rows and inserts into the ledger with one statement. The DELETE finds rows by primary key in the order
-- of the ids, and so locks them in that order; to lock them first would write each row twice. Returns one row: the ids
-- that are done, and their groups. Watched steps of joins are settled only with :watched, in a transaction that wakes the
-- continuations.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences, :owners::text::uuid[] AS owners
), gone AS (
    DELETE FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.state = 2
       AND q.owner = coalesce(((SELECT owners FROM given))[width_bucket(q.id, (SELECT ids FROM given))],
                              ((SELECT owners FROM given))[1])
       AND (q.watched IS NULL OR :watched::boolean)
    RETURNING q.id, q.owner, q.attempt, q.deliveries, q.last_error, q.group_id
), kept AS (
    INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
    SELECT id, :box, :now, owner, 'handled', attempt, deliveries, last_error FROM gone
)
SELECT array(SELECT id FROM gone), array(SELECT DISTINCT group_id FROM gone WHERE group_id IS NOT NULL)

-- name: complete_with_results
-- Like complete, for records of a guard: what the handler returned becomes the payload. NULL in the arrays: no result. No
-- record is a step of a join, and :watched is not used.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences, :owners::text::uuid[] AS owners
), gone AS (
    DELETE FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.state = 2
       AND q.owner = coalesce(((SELECT owners FROM given))[width_bucket(q.id, (SELECT ids FROM given))],
                              ((SELECT owners FROM given))[1])
    RETURNING q.id, q.owner, q.attempt, q.deliveries, q.last_error
), kept AS (
    INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
    SELECT id, :box, :now, owner, 'handled', attempt, deliveries, last_error FROM gone
), content AS (
    UPDATE postroom_message m
       SET payload = coalesce((:payload::bytea[])[width_bucket(m.id, (SELECT ids FROM given))], m.payload),
           format = coalesce((:format::text[])[width_bucket(m.id, (SELECT ids FROM given))], m.format)
     WHERE m.id = ANY (ARRAY (SELECT id FROM gone))
)
SELECT array(SELECT id FROM gone), ARRAY[]::text[]

-- name: finish
-- Arrays.
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT id, box, :now, NULL, :ending, attempt, deliveries, last_error
  FROM postroom_queue
 WHERE id = ANY (:ids::bigint[])

-- name: dequeue
-- Arrays.
DELETE FROM postroom_queue WHERE id = ANY (:ids::bigint[]) RETURNING id, group_id, watched

-- name: erase_content
-- Arrays.
UPDATE postroom_message SET payload = '', format = 'text', headers = NULL WHERE id = ANY (:ids::bigint[])

-- == reap, replay, purge ==

-- name: find_expired_leases
-- Expired leases outside of lines. No index has leases (a claim is a HOT update), so the statement reads :rows rows of
-- the ready index in order; the next one goes on where it ended. Locks the rows in id order, and skips rows that a
-- worker settles now. Returns one row: the ids, and the position of the last row that was read, or NULL if there are no
-- more.
WITH ready AS MATERIALIZED (
    SELECT q.id, q.available_at, q.lease_until, q.state = 2 AND q.lease_until <= :now AND q.holds IS NULL AS expired
      FROM postroom_queue q
     WHERE q.box = :box AND q.available_at <= :now
       AND (q.available_at, q.id) > (coalesce(:since, '-infinity'::timestamptz), :after::bigint)
     ORDER BY q.available_at, q.id
     LIMIT :rows
), locked AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE id = ANY (ARRAY (SELECT id FROM ready WHERE expired ORDER BY lease_until, id LIMIT :limit))
       AND state = 2 AND lease_until <= :now
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
)
SELECT array(SELECT id FROM locked), last.available_at, last.id
  FROM (SELECT count(*) AS read FROM ready) AS counted
  LEFT JOIN LATERAL (
        SELECT available_at, id FROM ready WHERE counted.read = :rows ORDER BY available_at DESC, id DESC LIMIT 1
  ) AS last ON true

-- name: find_expired_leases_in_groups
-- Expired leases in lines, by the held index. Only PostgreSQL has this index. Locks as find_expired_leases does.
SELECT id FROM postroom_queue
 WHERE id = ANY (ARRAY (SELECT id FROM postroom_queue
                         WHERE box = :box AND holds IS NOT NULL AND lease_until <= :now
                         ORDER BY lease_until, id LIMIT :limit))
   AND state = 2 AND lease_until <= :now
 ORDER BY id
   FOR NO KEY UPDATE SKIP LOCKED

-- name: end_leases
-- Arrays, and the columns lease_until and holds.
UPDATE postroom_queue SET state = 1, owner = NULL, lease_until = NULL, holds = NULL, lost_leases = lost_leases + 1
 WHERE id = ANY (:id::bigint[])

-- name: find_expired
-- Locks the rows FOR UPDATE, since they leave their lines, and skips rows that a worker claims now.
SELECT id, group_id FROM postroom_queue
 WHERE box = :box AND expires <= :now AND state = 1
 ORDER BY expires, id
 LIMIT :limit
   FOR UPDATE SKIP LOCKED

-- name: lock_dead
-- Locks the dead rows in id order, so a message is revived once.
SELECT id FROM postroom_queue WHERE id = ANY (:ids::bigint[]) AND state = 4 ORDER BY id FOR UPDATE

-- name: revive
-- Arrays.
UPDATE postroom_queue q
   SET state = 1, died_at = NULL, attempt = 0, deliveries = 0, lost_leases = 0, expires = NULL,
       group_id = (:group_id::text[])[width_bucket(q.id, :id::bigint[])],
       available_at = (:at::timestamptz[])[width_bucket(q.id, :id::bigint[])],
       fence = CASE WHEN q.fence = 0 THEN 1 ELSE q.fence END
 WHERE q.id = ANY (:id::bigint[])

-- name: clear_expires
-- Arrays.
UPDATE postroom_message SET expires = NULL WHERE id = ANY (:id::bigint[]) AND expires IS NOT NULL

-- name: purge_done
-- Reads the ledger in the order of its index, and each message in a LATERAL subquery: a join or another order would
-- read all of both tables first. Locks what it deletes, and skips rows that another transaction has locked.
WITH old AS MATERIALIZED (
    SELECT l.id
      FROM postroom_ledger l
      CROSS JOIN LATERAL (
            SELECT m.id, m.first_seen, m.last_seen FROM postroom_message m
             WHERE m.id = l.id LIMIT 1 FOR UPDATE SKIP LOCKED) m
     WHERE l.box = :box AND l.completed_at <= :cutoff
       AND (:sliding::integer = 0 OR m.last_seen <= :cutoff)
       AND (:window::interval IS NULL OR m.first_seen + :window <= :now)
     ORDER BY l.completed_at
     LIMIT :limit
       FOR UPDATE OF l SKIP LOCKED
)
DELETE FROM postroom_ledger l WHERE l.id = ANY (ARRAY (SELECT id FROM old)) RETURNING l.id, l.ending

-- name: purge_dead
-- Reads the dead index, whose condition is died_at. Skips rows that a replay has locked.
WITH old AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE (box, id) > (:box, 0) AND box <= :box AND died_at IS NOT NULL AND state = 4 AND died_at <= :cutoff
     ORDER BY box, id
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
)
DELETE FROM postroom_queue q WHERE q.id = ANY (ARRAY (SELECT id FROM old)) RETURNING q.id, q.group_id

-- name: purge_seen
-- Reads the seen index, by repeating its condition. Skips rows that another transaction has locked.
WITH old AS MATERIALIZED (
    SELECT q.id FROM postroom_queue q
      CROSS JOIN LATERAL (
            SELECT m.last_seen FROM postroom_message m WHERE m.id = q.id LIMIT 1 FOR UPDATE SKIP LOCKED) m
     WHERE (q.box, q.id) > (:box, 0) AND q.box <= :box
       AND q.available_at IS NULL AND q.group_id IS NULL AND q.died_at IS NULL
       AND q.state = 0 AND m.last_seen <= :cutoff
     ORDER BY q.box, q.id
     LIMIT :limit
       FOR UPDATE OF q SKIP LOCKED
)
DELETE FROM postroom_queue q WHERE q.id = ANY (ARRAY (SELECT id FROM old)) RETURNING q.id, q.group_id

-- name: delete_messages
-- Arrays.
DELETE FROM postroom_message WHERE id = ANY (:ids::bigint[])

-- == find ==

-- name: find_waiting
-- Waiting messages, in id order. No index has all of them: the ready index has those with a time, and the line index
-- has those that sleep. The conditions that exclude nothing (<= 'infinity', >= '') name the leading columns of these
-- indexes; `id + 0` excludes the primary key.
SELECT w.*
  FROM (SELECT q.id FROM postroom_queue q
         WHERE q.box = :box AND q.available_at <= 'infinity' AND q.state = 1 AND q.id + 0 > :after::bigint
        UNION ALL
        SELECT q.id FROM postroom_queue q
         WHERE q.box = :box AND q.group_id >= '' AND coalesce(q.available_at, 'infinity') = 'infinity' AND q.state = 1
           AND q.id + 0 > :after::bigint AND q.available_at IS NULL
         ORDER BY 1) n
  CROSS JOIN LATERAL (SELECT * FROM postroom_work w WHERE w.id = n.id LIMIT 1) w
 WHERE (:topic::text IS NULL OR w.topic = :topic)
   AND (:source::text IS NULL OR w.source = :source)
   AND (:group_id::text IS NULL OR w.group_id = :group_id)
   AND (:correlation_id::text IS NULL OR w.correlation_id = :correlation_id)
 ORDER BY n.id
 LIMIT :limit

-- name: lock_waiting
-- Only PostgreSQL locks rows. Waits for locked rows: if a claim had locked a row, it is claimed now and stays;
-- otherwise it is cancelled. FOR UPDATE, since the rows leave their lines: see sleep_behind_first.
SELECT id FROM postroom_queue WHERE id = ANY (:ids::bigint[]) AND state = 1 ORDER BY id FOR UPDATE

-- name: find_nearby
-- Parameters with types. The subquery with LIMIT reads messages by primary key only as far as needed.
SELECT e.*
  FROM (SELECT id, box FROM postroom_message WHERE id > :after ORDER BY id LIMIT :nearby) n
  CROSS JOIN LATERAL (SELECT * FROM postroom_entry e WHERE e.id = n.id LIMIT 1) e
 WHERE n.box = :box
   AND (:topic::text IS NULL OR e.topic = :topic)
   AND (:source::text IS NULL OR e.source = :source)
   AND (:group_id::text IS NULL OR e.group_id = :group_id)
   AND (:correlation_id::text IS NULL OR e.correlation_id = :correlation_id)
   AND (:seen::integer = 1 OR e.state <> 0) AND (:waiting::integer = 1 OR e.state <> 1)
   AND (:claimed::integer = 1 OR e.state <> 2) AND (:done::integer = 1 OR e.state <> 3)
   AND (:dead::integer = 1 OR e.state <> 4)
 ORDER BY n.id
 LIMIT :limit

-- name: find_in_box
-- Parameters with types: PostgreSQL cannot infer the type of a parameter from IS NULL.
SELECT e.*
  FROM postroom_entry e
 WHERE e.box = :box AND e.id > :after
   AND (:topic::text IS NULL OR e.topic = :topic)
   AND (:source::text IS NULL OR e.source = :source)
   AND (:group_id::text IS NULL OR e.group_id = :group_id)
   AND (:correlation_id::text IS NULL OR e.correlation_id = :correlation_id)
   AND (:seen::integer = 1 OR e.state <> 0) AND (:waiting::integer = 1 OR e.state <> 1)
   AND (:claimed::integer = 1 OR e.state <> 2) AND (:done::integer = 1 OR e.state <> 3)
   AND (:dead::integer = 1 OR e.state <> 4)
 ORDER BY e.id
 LIMIT :limit

-- name: find_dead
-- Parameters with types, and the dead index, whose condition is died_at.
SELECT w.*
  FROM postroom_queue q
  CROSS JOIN LATERAL (SELECT * FROM postroom_work w WHERE w.id = q.id LIMIT 1) w
 WHERE (q.box, q.id) > (:box, :after::bigint) AND q.box <= :box AND q.died_at IS NOT NULL AND q.state = 4
   AND (:blocking::integer = 0 OR q.group_id IS NOT NULL)
   AND (:topic::text IS NULL OR w.topic = :topic)
   AND (:source::text IS NULL OR w.source = :source)
   AND (:group_id::text IS NULL OR w.group_id = :group_id)
   AND (:correlation_id::text IS NULL OR w.correlation_id = :correlation_id)
 ORDER BY q.box, q.id
 LIMIT :limit

-- name: find_by_ids
-- Arrays. `box || ''` excludes an index on the box.
SELECT e.* FROM postroom_entry e WHERE e.id = ANY (:ids::bigint[]) AND e.box || '' = :box ORDER BY e.id

-- == attend ==

-- name: attend
-- One statement: only PostgreSQL can change a table and read others in one. The row without a box is the soft lease: the
-- seconds until the lease of another process ends, NULL if :process has it.
--
--   * `free` skips a locked row, so it waits for no lock: another process takes the lease at this moment. It checks the
--     row again if it has changed since the snapshot. In both cases the other process has the lease for :lease.
--   * A row that waits is due at available_at. `first` reads the ready index up to the first such row. The rows before
--     it are claimed.
--   * If `first` is not due, the end of a lease may come before it. The claimed rows outside of groups have an
--     available_at that has passed; in groups it is the end of the lease. So both are before `first` in the index.
--   * A nudged group has no awake row, perhaps, but a claim must look at it.
WITH free AS MATERIALIZED (
    SELECT a.id FROM postroom_attendant a
     WHERE a.id = 1
       AND (a.until IS NULL OR a.until <= :now OR (a.process = :process::uuid AND :lease::interval <= '0'))
       FOR NO KEY UPDATE SKIP LOCKED
), taken AS (
    UPDATE postroom_attendant a SET process = :process::uuid, until = :now + :lease::interval
     WHERE a.id = ANY (ARRAY (SELECT id FROM free))
    RETURNING a.id
)
SELECT NULL,
       CASE WHEN EXISTS (SELECT FROM taken) OR (a.until > :now AND a.process = :process::uuid) THEN NULL
            WHEN a.until > :now THEN extract(epoch FROM a.until - :now)
            ELSE extract(epoch FROM :lease::interval) END::double precision,
       false
  FROM postroom_attendant a
 WHERE a.id = 1
UNION ALL
SELECT b.box, extract(epoch FROM least(first.time, claimed.time, nudged.time) - :now)::double precision, false
  FROM unnest(:boxes::text[]) AS b (box)
  LEFT JOIN LATERAL (
            SELECT q.available_at AS time FROM postroom_queue q
             WHERE q.box = b.box AND q.available_at >= '-infinity' AND q.state = 1
             ORDER BY q.available_at, q.id
             LIMIT 1) first ON true
  LEFT JOIN LATERAL (
            SELECT min(q.lease_until) AS time FROM postroom_queue q
             WHERE (first.time IS NULL OR first.time > :now) AND q.box = b.box
               AND q.available_at < coalesce(first.time, 'infinity') AND q.state = 2) claimed ON true
  LEFT JOIN LATERAL (
            SELECT :now AS time FROM postroom_nudge n WHERE n.box = b.box LIMIT 1) nudged ON true

-- == joins ==
--
-- A look (joins.py) waits for no lock, so it cannot deadlock with settlements that come in batches. It locks a
-- continuation, then its join, then a step to watch. Programs that attach, report, seal or cancel lock the join, then
-- its continuation. A settlement locks the rows of its messages, then the continuations that it wakes.

-- name: find_joins
-- Parameters with types.
SELECT j.id, j.number, j.tenant_id, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps, j.status,
       j.sealed, j.fails, j.wait_id, j.metadata, j.deadline, j.created_at, j.updated_at, j.on_complete_topic,
       j.on_complete_payload, j.on_complete_format, j.on_fail_topic, j.on_fail_payload, j.on_fail_format
  FROM postroom_join j
 WHERE j.box = :box AND j.number > :after AND (:tenant_id::text IS NULL OR j.tenant_id = :tenant_id)
 ORDER BY j.number
 LIMIT :limit

-- name: lock_join
-- Only PostgreSQL locks rows. Waits for transactions that attach steps, and for a look.
SELECT j.id, j.number, j.tenant_id, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps, j.status,
       j.sealed, j.fails, j.wait_id, j.metadata, j.deadline, j.created_at, j.updated_at, j.on_complete_topic,
       j.on_complete_payload, j.on_complete_format, j.on_fail_topic, j.on_fail_payload, j.on_fail_format
  FROM postroom_join j
 WHERE j.id = :id AND j.box = :box
   FOR UPDATE

-- name: share_join
-- Only PostgreSQL locks rows. Several transactions can attach steps to an open join; none can seal it meanwhile.
SELECT j.id, j.number, j.tenant_id, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps, j.status,
       j.sealed, j.fails, j.wait_id, j.metadata, j.deadline, j.created_at, j.updated_at, j.on_complete_topic,
       j.on_complete_payload, j.on_complete_format, j.on_fail_topic, j.on_fail_payload, j.on_fail_format
  FROM postroom_join j
 WHERE j.id = :id AND j.box = :box
   FOR SHARE

-- name: find_steps
-- A LATERAL subquery: a join might read all of the messages.
SELECT s.message_id, m.source, m.message_id, s.status, s.attached_at
  FROM (SELECT * FROM postroom_step s
         WHERE s.join_id = :join AND s.message_id > :after
         ORDER BY s.message_id
         LIMIT :limit) s
  LEFT JOIN LATERAL (
        SELECT m.source, m.message_id FROM postroom_message m WHERE m.id = s.message_id LIMIT 1) m ON true
 ORDER BY s.message_id

-- name: lock_message
-- Only PostgreSQL locks rows. A purge cannot delete the message before this transaction ends.
SELECT id FROM postroom_message WHERE id = :id AND box || '' = :box FOR KEY SHARE

-- name: lock_message_named
-- Locks as lock_message does.
SELECT id FROM postroom_message
 WHERE box = :box AND message_id = :message_id AND source = :source AND retired = 0
   FOR KEY SHARE

-- name: insert_step
-- Arrays.
INSERT INTO postroom_join_member (join_id, message_id, attached_at)
SELECT * FROM unnest(:join_id::uuid[], :message_id::bigint[], :attached_at::timestamptz[])
ON CONFLICT (join_id, message_id) DO NOTHING

-- name: add_steps
-- Parameters with types.
UPDATE postroom_join
   SET attached_steps = attached_steps + :count::integer,
       updated_at = CASE WHEN attached_steps + :count::integer = expected_steps THEN :now ELSE updated_at END
 WHERE id = :id

-- name: seal_join
-- Booleans are not numbers here.
UPDATE postroom_join SET sealed = true, updated_at = :now WHERE id = :id

-- name: end_join
-- Arrays.
UPDATE postroom_join j
   SET status = (:status::smallint[])[width_bucket(j.id, :id::uuid[])],
       completed_steps = (:completed::integer[])[width_bucket(j.id, :id::uuid[])],
       failed_steps = (:failed::integer[])[width_bucket(j.id, :id::uuid[])],
       attached_steps = CASE WHEN j.expected_steps IS NULL THEN (:attached::integer[])[width_bucket(j.id, :id::uuid[])]
                             ELSE j.attached_steps END,
       updated_at = :now
 WHERE j.id = ANY (:id::uuid[])

-- name: reopen_join
-- Arrays.
UPDATE postroom_join SET status = 0, completed_steps = NULL, failed_steps = NULL WHERE id = ANY (:id::uuid[])

-- name: sleep_wait
-- Arrays.
UPDATE postroom_queue q SET available_at = (:at::timestamptz[])[width_bucket(q.id, :id::bigint[])]
 WHERE q.id = ANY (:id::bigint[])

-- name: set_follow_up
-- Arrays.
UPDATE postroom_message m
   SET topic = (:topic::text[])[width_bucket(m.id, :id::bigint[])],
       payload = (:payload::bytea[])[width_bucket(m.id, :id::bigint[])],
       format = (:format::text[])[width_bucket(m.id, :id::bigint[])]
 WHERE m.id = ANY (:id::bigint[])

-- name: release_wait
-- Arrays.
UPDATE postroom_queue SET waits_for = NULL, available_at = :now WHERE id = ANY (:id::bigint[])

-- name: lock_wait
-- Only PostgreSQL locks rows. Waits for a look. Locks also the continuations that the end of this one wakes, in id order,
-- as wake_continuations does.
SELECT q.id
  FROM postroom_queue q
 WHERE q.id = ANY (array_append(
           ARRAY (SELECT j.wait_id
                    FROM (SELECT m.join_id FROM postroom_join_member m WHERE m.message_id = :id OFFSET 0) m
                    CROSS JOIN LATERAL (SELECT j.wait_id FROM postroom_join j WHERE j.id = m.join_id LIMIT 1) j),
           :id::bigint))
   AND q.state = 1
 ORDER BY q.id
   FOR UPDATE

-- name: lock_waits
-- Only PostgreSQL locks rows. Locks continuations, their joins and their messages, to which the end of a join writes. It
-- leaves out a continuation if another transaction has locked one of the three. The coalesce() excludes the ready index.
SELECT q.id, :now, j.*
  FROM postroom_queue q
  CROSS JOIN LATERAL (
        SELECT j.id, j.number, j.tenant_id, j.expected_steps, j.attached_steps, j.completed_steps, j.failed_steps,
               j.status, j.sealed, j.fails, j.wait_id, j.metadata, j.deadline, j.created_at, j.updated_at,
               j.on_complete_topic, j.on_complete_payload, j.on_complete_format, j.on_fail_topic, j.on_fail_payload,
               j.on_fail_format
          FROM postroom_join j
         WHERE j.id = q.waits_for
         LIMIT 1
           FOR UPDATE SKIP LOCKED) j
  CROSS JOIN LATERAL (
        SELECT m.id FROM postroom_message m WHERE m.id = q.id LIMIT 1 FOR UPDATE SKIP LOCKED) m
 WHERE q.id = ANY (:ids::bigint[]) AND coalesce(q.available_at, 'infinity') <= :now
   AND q.state = 1 AND q.waits_for IS NOT NULL
 ORDER BY q.id
   FOR UPDATE OF q SKIP LOCKED

-- name: lock_pending_steps
-- Arrays, and locks: the last pending step of each join that no other transaction has locked. A step whose row is locked
-- may be about to end, and is left out. If it finds none, it counts the steps by the rule of the view postroom_step.
-- Arrays of ids take a third of the time of the view.
SELECT g.id, step.id, counted.pending, counted.completed, counted.failed
  FROM unnest(:joins::uuid[]) AS g (id)
  LEFT JOIN LATERAL (
        SELECT q.id
          FROM postroom_queue q
         WHERE q.id = ANY (ARRAY (SELECT m.message_id FROM postroom_join_member m
                                   WHERE m.join_id = g.id AND m.outcome IS NULL))
           AND q.state <> 4
         ORDER BY q.id DESC
         LIMIT 1
           FOR NO KEY UPDATE SKIP LOCKED) step ON true
  LEFT JOIN LATERAL (
        SELECT q.pending, m.steps - m.failed - q.pending - q.dead - l.failed AS completed,
               m.failed + q.dead + l.failed AS failed
          FROM (SELECT count(*) AS steps, count(*) FILTER (WHERE m.outcome = 2) AS failed,
                       array_agg(m.message_id) FILTER (WHERE m.outcome IS NULL) AS ids
                  FROM postroom_join_member m
                 WHERE m.join_id = g.id) m
          CROSS JOIN LATERAL (
                SELECT count(*) FILTER (WHERE q.state <> 4) AS pending, count(*) FILTER (WHERE q.state = 4) AS dead
                  FROM postroom_queue q
                 WHERE q.id = ANY (m.ids)) q
          CROSS JOIN LATERAL (
                SELECT count(*) AS failed
                  FROM postroom_ledger l
                 WHERE l.id = ANY (m.ids) AND l.ending IN ('cancelled', 'discarded')) l
         WHERE step.id IS NULL) counted ON true

-- name: watch_step
-- Arrays. Writes marked rows again: a transaction that keeps an older snapshot and ends the step then fails, since it
-- would not see the join that watches the step now.
UPDATE postroom_queue SET watched = true WHERE id = ANY (:id::bigint[])

-- name: count_steps
-- Arrays.
SELECT g.id, count(*) FILTER (WHERE s.status = 0), count(*) FILTER (WHERE s.status = 1),
       count(*) FILTER (WHERE s.status = 2)
  FROM unnest(:joins::uuid[]) AS g (id)
  CROSS JOIN LATERAL (SELECT s.status FROM postroom_step s WHERE s.join_id = g.id OFFSET 0) s
 GROUP BY g.id

-- name: find_known_steps
-- Arrays.
SELECT m.message_id FROM postroom_join_member m WHERE m.join_id = :join AND m.message_id = ANY (:ids::bigint[])

-- name: find_known_puts
-- Arrays.
SELECT m.id, EXISTS (SELECT FROM postroom_join_member j WHERE j.join_id = :join AND j.message_id = m.id)
  FROM unnest(:sources::text[], :message_ids::text[]) AS k (source, message_id)
  CROSS JOIN LATERAL (
        SELECT m.id FROM postroom_message m
         WHERE m.box = :box AND m.message_id = k.message_id AND m.source = k.source AND m.retired = 0
           AND (:since::timestamptz IS NULL OR m.first_seen > :since)
         LIMIT 1) m

-- name: find_circle
-- Arrays, and LATERAL subqueries: a join might read all of the steps.
WITH RECURSIVE above (id, wait_id) AS (
    SELECT j.id, j.wait_id FROM postroom_join j WHERE j.id = :join
     UNION
    SELECT j.id, j.wait_id
      FROM above a
      CROSS JOIN LATERAL (SELECT m.join_id FROM postroom_join_member m WHERE m.message_id = a.wait_id OFFSET 0) m
      CROSS JOIN LATERAL (
            SELECT j.id, j.wait_id FROM postroom_join j WHERE j.id = m.join_id AND j.status = 0 LIMIT 1) j
)
SELECT a.wait_id FROM above a WHERE a.wait_id = ANY (:ids::bigint[])

-- name: wake_continuations
-- Arrays. Locks the continuations in id order. It waits for a look that has locked one: the look may have decided by
-- the state before this transaction.
WITH found AS MATERIALIZED (
    SELECT j.wait_id
      FROM unnest(:ids::bigint[]) AS i (id)
      CROSS JOIN LATERAL (SELECT m.join_id FROM postroom_join_member m WHERE m.message_id = i.id OFFSET 0) m
      CROSS JOIN LATERAL (
            SELECT j.wait_id FROM postroom_join j WHERE j.id = m.join_id AND j.wait_id IS NOT NULL LIMIT 1) j
), locked AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE id = ANY (ARRAY (SELECT wait_id FROM found)) AND state = 1 AND waits_for IS NOT NULL
     ORDER BY id
       FOR NO KEY UPDATE
)
UPDATE postroom_queue SET available_at = :now WHERE id = ANY (ARRAY (SELECT id FROM locked)) RETURNING id

-- name: lock_continuations_now
-- Only PostgreSQL locks rows. Locks what wake_continuations would lock, and waits for no lock. Returns the messages of
-- which it could not lock all continuations.
WITH found AS MATERIALIZED (
    SELECT i.id, j.wait_id
      FROM unnest(:ids::bigint[]) AS i (id)
      CROSS JOIN LATERAL (SELECT m.join_id FROM postroom_join_member m WHERE m.message_id = i.id OFFSET 0) m
      CROSS JOIN LATERAL (
            SELECT j.wait_id FROM postroom_join j WHERE j.id = m.join_id AND j.wait_id IS NOT NULL LIMIT 1) j
      CROSS JOIN LATERAL (
            SELECT q.id FROM postroom_queue q
             WHERE q.id = j.wait_id AND q.state = 1 AND q.waits_for IS NOT NULL LIMIT 1) q
), locked AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE id = ANY (ARRAY (SELECT wait_id FROM found))
       FOR NO KEY UPDATE SKIP LOCKED
)
SELECT DISTINCT f.id FROM found f WHERE f.wait_id <> ALL (ARRAY (SELECT id FROM locked))

-- name: replace_steps
-- Arrays. Puts the message :new in the place of the first superseded step of each join.
WITH first AS MATERIALIZED (
    SELECT m.join_id, min(m.message_id) AS message_id
      FROM unnest(:ids::bigint[]) AS i (id)
      CROSS JOIN LATERAL (
            SELECT m.join_id, m.message_id FROM postroom_join_member m
             WHERE m.message_id = i.id AND m.outcome IS NULL OFFSET 0) m
      CROSS JOIN LATERAL (SELECT 1 FROM postroom_join j WHERE j.id = m.join_id AND j.status = 0 LIMIT 1) j
     WHERE m.join_id IS DISTINCT FROM :join::uuid
     GROUP BY m.join_id
)
UPDATE postroom_join_member m SET message_id = :new::bigint
  FROM first
 WHERE m.join_id = first.join_id AND m.message_id = first.message_id
   AND NOT EXISTS (SELECT FROM postroom_join_member n WHERE n.join_id = first.join_id AND n.message_id = :new::bigint)
RETURNING m.join_id

-- name: watch_instead
-- Arrays.
UPDATE postroom_queue SET watched = true
 WHERE id = :new AND EXISTS (SELECT FROM postroom_queue q WHERE q.id = ANY (:ids::bigint[]) AND q.watched)

-- name: keep_failures
-- Arrays.
UPDATE postroom_join_member SET outcome = 2 WHERE message_id = ANY (:ids::bigint[]) AND outcome IS NULL

-- name: purge_steps
-- Locks the joins, and skips those that another transaction has locked.
WITH old AS MATERIALIZED (
    SELECT j.id FROM postroom_join j
     WHERE j.box = :box AND j.status <> 0 AND j.updated_at <= :cutoff
       AND NOT EXISTS (SELECT FROM postroom_queue q WHERE q.id = j.wait_id AND q.waits_for IS NOT NULL)
     ORDER BY j.updated_at
     LIMIT 100
       FOR UPDATE SKIP LOCKED
), steps AS MATERIALIZED (
    SELECT m.join_id, m.message_id
      FROM old
      CROSS JOIN LATERAL (SELECT * FROM postroom_join_member m WHERE m.join_id = old.id OFFSET 0) m
     LIMIT :limit
)
DELETE FROM postroom_join_member m
 USING steps s
 WHERE m.join_id = s.join_id AND m.message_id = s.message_id

-- name: purge_joins
-- Skips joins that another transaction has locked. A join whose continuation is a dead letter stays: a replay looks at
-- it again.
WITH old AS MATERIALIZED (
    SELECT j.id FROM postroom_join j
     WHERE j.box = :box AND j.status <> 0 AND j.updated_at <= :cutoff
       AND NOT EXISTS (SELECT FROM postroom_queue q WHERE q.id = j.wait_id AND q.waits_for IS NOT NULL)
       AND NOT EXISTS (SELECT FROM postroom_join_member m WHERE m.join_id = j.id)
     ORDER BY j.updated_at
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
)
DELETE FROM postroom_join WHERE id = ANY (ARRAY (SELECT id FROM old))
