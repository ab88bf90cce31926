-- PostgreSQL's own statements. Each says why it differs.
--
-- Lists come as arrays, or as the text of one (see arrays.py), columns of rows as one array each. Writers work side by side
-- here: whatever decides by what it has read locks it, several rows in id order, and a claim never waits for a lock. `:now`
-- is the statement's own moment.
--
-- A plan is made once and kept, perhaps while a table was empty: then to read all of it seems as good as any way. So a
-- statement is written such that there is only one way. Rows are found by `id = ANY (array)`, never by a join with an array;
-- of what comes with them they find their own by its place, since ids come in order (`width_bucket` is a binary search).
-- Where another table is looked up, that is in a subquery with a LIMIT. And `ORDER BY id` alone would make the primary key
-- seem to fit: the rows of a line, and the dead, are ordered by their box too, which is not compared by a plain `=`. (A
-- pair as an upper bound would do that as well, but does not end a scan.)

-- name: has_schema
SELECT 1 WHERE to_regclass('postroom_schema') IS NOT NULL

-- name: schema_version
SELECT coalesce(max(version), 0) FROM postroom_schema

-- name: lock_schema
-- Two migrations cannot race; and one that must wait for a table gives up before those behind it have waited long.
SELECT pg_advisory_xact_lock(hashtextextended('postroom_schema', 0)), set_config('lock_timeout', '5s', true)

-- name: moment
SELECT :now

-- name: reserve
SELECT nextval('postroom_ids')

-- name: notify
-- PostgreSQL itself sends it once per transaction, however often it is asked to, and only at the commit.
SELECT pg_notify(:channel, :box)

-- == put ==

-- name: arrive_plain
-- Messages without options, in one statement: ids in the order of the drafts, rows in the order of their keys, so that
-- two bulk puts with common keys wait for each other and do not deadlock. An array of one item stands for all rows. The
-- answer is one row: all ids in their order, and those that were not used because their key was known.
WITH given AS MATERIALIZED (
    SELECT nextval('postroom_ids') AS id, d.message_id, d.payload, d.place,
           coalesce(d.source, (:source::text[])[1]) AS source, coalesce(d.topic, (:topic::text[])[1]) AS topic,
           coalesce(d.format, (:format::text[])[1]) AS format
      FROM unnest(:source::text[], :message_id::text::text[], :topic::text[], :payload::bytea[], :format::text[])
           WITH ORDINALITY AS d (source, message_id, topic, payload, format, place)
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
SELECT array(SELECT id FROM given ORDER BY place),
       CASE WHEN (SELECT count(*) FROM new) < (SELECT count(*) FROM given)
            THEN array(SELECT id FROM given EXCEPT SELECT id FROM new) END,
       (SELECT pg_notify(:channel, :box) WHERE :tells::boolean AND EXISTS (SELECT FROM new))

-- name: arrive
-- The same for messages with any option. NULL instead of an array stands for NULL in all rows.
WITH given AS MATERIALIZED (
    SELECT nextval('postroom_ids') AS id, d.message_id, d.payload, d.place,
           coalesce(d.source, (:source::text[])[1]) AS source, coalesce(d.topic, (:topic::text[])[1]) AS topic,
           coalesce(d.format, (:format::text[])[1]) AS format,
           d.headers, d.correlation_id, d.group_id, d.collapse_key, d.hash, d.hash_algorithm, d.due, d.received_at,
           coalesce(d.expires, :now + d.lifetime) AS expires_at
      FROM unnest(:source::text[], :message_id::text::text[], :topic::text[], :payload::bytea[], :format::text[],
                  :headers::text[], :correlation_id::text[], :group_id::text[], :collapse_key::text[], :hash::bytea[],
                  :hash_algorithm::text[], :due::timestamptz[], :expires::timestamptz[], :lifetime::interval[],
                  :received_at::timestamptz[])
           WITH ORDINALITY AS d (source, message_id, topic, payload, format, headers, correlation_id, group_id,
                                 collapse_key, hash, hash_algorithm, due, expires, lifetime, received_at, place)
), new AS (
    INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, headers, correlation_id, group_id,
                                  collapse_key, hash, hash_algorithm, due, expires, received_at, first_seen, last_seen)
    SELECT id, :box, source, message_id, topic, payload, format, headers, correlation_id, group_id,
           collapse_key, hash, hash_algorithm, due, expires_at, received_at, :now, :now
      FROM given
     ORDER BY message_id COLLATE "C", source COLLATE "C"
        ON CONFLICT (box, message_id, source, retired) DO NOTHING
    RETURNING id, due, CASE WHEN :fifo::boolean THEN group_id END AS line, collapse_key, expires
), entered AS (
    INSERT INTO postroom_queue (id, box, state, available_at, fence, group_id, collapse_key, expires)
    -- Of several new ones in a line, the first wakes the others; who has a due time wakes by itself. Whether somebody
    -- stands ahead is not asked: to rely on that, it would have to be locked. The first claim finds out.
    SELECT id, :box, 1,
           CASE WHEN due > :now THEN due
                WHEN line IS NULL OR due IS NOT NULL THEN :now
                WHEN row_number() OVER (PARTITION BY line, due IS NULL ORDER BY id) = 1 THEN :now
           END,
           CASE WHEN due > :now AND line IS NOT NULL THEN -1 ELSE 0 END, line, collapse_key, expires
      FROM new
)
SELECT array(SELECT id FROM given ORDER BY place),
       CASE WHEN (SELECT count(*) FROM new) < (SELECT count(*) FROM given)
            THEN array(SELECT id FROM given EXCEPT SELECT id FROM new) END,
       (SELECT pg_notify(:channel, :box) WHERE :tells::boolean AND EXISTS (SELECT FROM new))

-- name: insert_message
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, headers, correlation_id, group_id,
                              collapse_key, hash, hash_algorithm, due, expires, received_at, first_seen, last_seen)
SELECT * FROM unnest(:id::bigint[], :box::text[], :source::text[], :message_id::text[], :topic::text[], :payload::bytea[],
                     :format::text[], :headers::text[], :correlation_id::text[], :group_id::text[],
                     :collapse_key::text[], :hash::bytea[], :hash_algorithm::text[], :due::timestamptz[],
                     :expires::timestamptz[], :received_at::timestamptz[], :first_seen::timestamptz[],
                     :last_seen::timestamptz[])
ON CONFLICT (box, message_id, source, retired) DO NOTHING
RETURNING id

-- name: insert_plain_message
INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
SELECT * FROM unnest(:id::bigint[], :box::text[], :source::text[], :message_id::text[], :topic::text[], :payload::bytea[],
                     :format::text[], :first_seen::timestamptz[], :last_seen::timestamptz[])
ON CONFLICT (box, message_id, source, retired) DO NOTHING
RETURNING id

-- name: enter
INSERT INTO postroom_queue (id, box, state, available_at, fence, group_id, collapse_key, expires)
SELECT * FROM unnest(:id::bigint[], :box::text[], :state::smallint[], :available_at::timestamptz[], :fence::bigint[],
                     :group_id::text[], :collapse_key::text[], :expires::timestamptz[])
RETURNING id

-- name: lock_collapse_keys
-- Two that collapse the same key at the same time would not see each other. The lock lasts as long as the transaction. A
-- server has room for a few thousand such locks, so keys share them. The waiting rows of these keys are locked before: a
-- transaction that has one of them locked may come for the advisory lock, too.
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
-- Before several known keys are met: in one order, so that two who know the same keys do not deadlock.
WITH k AS MATERIALIZED (
    SELECT m.id
      FROM unnest(:source::text[], :message_id::text[]) AS k (source, message_id)
      CROSS JOIN LATERAL (
            SELECT m.id FROM postroom_message m
             WHERE m.box = :box AND m.message_id = k.message_id AND m.source = k.source AND m.retired = 0
             LIMIT 1) m
), q AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE id = ANY (ARRAY (SELECT id FROM k)) AND :queue::boolean
     ORDER BY id
       FOR UPDATE
)
SELECT id FROM postroom_message
 WHERE id = ANY (ARRAY (SELECT id FROM k)) AND (SELECT count(*) FROM q) >= 0
 ORDER BY id
   FOR UPDATE

-- name: known
-- Who holds a key, and how far it is; neither can change before this transaction ends. The queue's row is locked before
-- the message, as everywhere: m cannot be read before q has been counted.
WITH k AS MATERIALIZED (
    SELECT id FROM postroom_message WHERE box = :box AND message_id = :message_id AND source = :source AND retired = 0
), q AS MATERIALIZED (
    SELECT id, state, group_id, available_at, fence FROM postroom_queue WHERE id = (SELECT id FROM k) FOR UPDATE
), m AS MATERIALIZED (
    SELECT id, hash, hash_algorithm, first_seen, revision, group_id, topic
      FROM postroom_message
     WHERE id = (SELECT id FROM k) AND retired = 0 AND (SELECT count(*) FROM q) >= 0
       FOR UPDATE
)
SELECT m.id, coalesce(q.state, 3)::integer, m.hash, m.hash_algorithm, m.first_seen, m.revision, m.group_id,
       q.group_id, q.available_at, q.fence, m.topic
  FROM m LEFT JOIN q ON q.id = m.id

-- name: known_in_passing
-- The same in a caller's transaction, which may last: what a worker may be about to settle is read and not locked, so that
-- it need not wait. No state at all means that it has changed under our eyes: ask again.
WITH k AS MATERIALIZED (
    SELECT id FROM postroom_message WHERE box = :box AND message_id = :message_id AND source = :source AND retired = 0
), idle AS MATERIALIZED (
    SELECT id, state, group_id, available_at, fence
      FROM postroom_queue
     WHERE id = (SELECT id FROM k) AND state IN (0, 4)
       FOR UPDATE
), m AS MATERIALIZED (
    SELECT id, hash, hash_algorithm, first_seen, revision, group_id, topic
      FROM postroom_message
     WHERE id = (SELECT id FROM k) AND retired = 0 AND (SELECT count(*) FROM idle) >= 0
       FOR UPDATE
), busy AS MATERIALIZED (
    SELECT id, state, group_id, available_at, fence
      FROM postroom_queue
     WHERE id = (SELECT id FROM m) AND state IN (1, 2)
)
SELECT m.id,
       coalesce(idle.state, busy.state,
                CASE WHEN EXISTS (SELECT FROM postroom_ledger l WHERE l.id = m.id) THEN 3 END)::integer,
       m.hash, m.hash_algorithm, m.first_seen, m.revision, m.group_id,
       coalesce(idle.group_id, busy.group_id), coalesce(idle.available_at, busy.available_at),
       coalesce(idle.fence, busy.fence), m.topic
  FROM m
  LEFT JOIN idle ON idle.id = m.id
  LEFT JOIN busy ON busy.id = m.id

-- name: replace
UPDATE postroom_message
   SET topic = :topic, payload = :payload, format = :format, headers = :headers, correlation_id = :correlation_id,
       hash = :hash, hash_algorithm = :hash_algorithm, due = :due, expires = coalesce(:expires, expires),
       revision = revision + (topic <> :topic OR payload <> :payload OR format <> :format
                              OR hash IS DISTINCT FROM :hash)::integer
 WHERE id = :id
RETURNING revision

-- name: offer
-- It may leave its line for a while, so it is locked FOR UPDATE first: see `sleep`.
WITH locked AS MATERIALIZED (
    SELECT id FROM postroom_queue WHERE id = :id AND state = 1 AND fence = :was FOR UPDATE
)
UPDATE postroom_queue SET available_at = :at, fence = :fence WHERE id = ANY (ARRAY (SELECT id FROM locked))

-- name: rivals
-- A row that another transaction has locked is waited for: a claim takes it, and then it is left alone, or the lock has
-- another reason, and then it must not be missed. A bare id would make the primary key seem to fit.
SELECT id FROM postroom_queue
 WHERE box = :box AND collapse_key = :collapse_key AND state = 1 AND id + 0 < :before AND id <> :id
 ORDER BY id + 0
   FOR UPDATE

-- == claim ==

-- name: turn
-- What was handled goes, what is due comes: a worker's round is one statement, one commit and one visit. A claim by itself
-- is a turn with nothing to hand in.
--
-- `due` is materialised, or the planner might run it again for each row and lock more than was asked for. A suspect
-- (see is_suspect in the kernel) is taken alone, if it comes first. The first row is about all of it: how far the look went,
-- the end of the leases, how many suspects there are, whether one was taken, what was settled, what must not be claimed any more, and the lines
-- that have moved on; it has as many columns as the others.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences
), gone AS (
    DELETE FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.owner = :owner AND q.state = 2
    RETURNING q.id, q.owner, q.attempt, q.deliveries, q.last_error, q.group_id
), kept AS (
    INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
    SELECT id, :box, :now, owner, 'handled', attempt, deliveries, last_error FROM gone
), due AS MATERIALIZED (
    SELECT q.id, q.available_at,
           (q.expires IS NULL OR q.expires > :now) AND (:most::integer IS NULL OR q.deliveries < :most)
           AND (:most_lost::integer IS NULL OR q.lost_leases + (q.state = 2)::integer < :most_lost) AS may,
           q.lost_leases + (q.state = 2)::integer >= CASE WHEN q.deliveries + 1 >= :most THEN 1 ELSE :suspect_from::integer END
               AS suspect
      FROM postroom_queue q
     WHERE q.box = :box AND q.available_at <= :now
       AND (q.available_at, q.id) > (coalesce(:since, '-infinity'::timestamptz), :after::bigint)
       AND (q.state = 1 OR q.lease_until <= :now)
       AND NOT (q.state = 2 AND q.owner = :owner AND q.id = ANY ((SELECT ids FROM given)::bigint[]))  -- just settled
       AND q.id <> ALL (:in_hand::bigint[])
       AND (:suspects::integer = 1
            OR q.lost_leases + (q.state = 2)::integer < CASE WHEN q.deliveries + 1 >= :most THEN 1 ELSE :suspect_from::integer END
            OR q.deliveries >= :most OR q.lost_leases + (q.state = 2)::integer >= :most_lost OR q.expires <= :now)
       AND (:topics::text[] IS NULL OR (SELECT topic FROM postroom_message m WHERE m.id = q.id) = ANY (:topics))
     ORDER BY q.available_at, q.id
     LIMIT :limit
       FOR NO KEY UPDATE SKIP LOCKED
), alone AS MATERIALIZED (
    SELECT first.id
      FROM (SELECT id, suspect FROM due WHERE may ORDER BY available_at, id LIMIT 1) AS first
     WHERE first.suspect
), taken AS (
    -- In a box without order nobody stands in a line, unless it had an order before.
    UPDATE postroom_queue q
       SET state = 2, owner = :owner, fence = greatest(q.fence, 0) + 1, deliveries = q.deliveries + 1,
           lost_leases = q.lost_leases + (q.state = 2)::integer, lease_until = :now + :lease::interval, stale = 0,
           holds = q.group_id
     WHERE q.id = ANY (CASE WHEN EXISTS (SELECT FROM alone) THEN ARRAY (SELECT id FROM alone)
                            ELSE ARRAY (SELECT id FROM due WHERE may AND NOT suspect) END)
    RETURNING q.id, q.available_at, q.attempt, q.deliveries, q.last_error, q.fence, q.lost_leases
)
(SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, (SELECT max(available_at) FROM due),
        :now + :lease::interval, NULL, NULL, NULL, (SELECT count(*) FROM due WHERE may AND suspect)::integer,
        (SELECT count(*) FROM alone)::integer, NULL, NULL, NULL, NULL,
        array(SELECT id FROM gone), array(SELECT id FROM due WHERE NOT may),
        array(SELECT DISTINCT group_id FROM gone WHERE group_id IS NOT NULL))
UNION ALL
(SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       t.attempt, t.deliveries, t.last_error, t.fence, t.lost_leases, NULL, NULL, NULL
  FROM taken t
  CROSS JOIN LATERAL (SELECT * FROM postroom_message m WHERE m.id = t.id LIMIT 1) m
 ORDER BY t.available_at, t.id)

-- name: lock_doomed
-- What a claim has left behind, if it is still so: a lease may have been renewed. A message that another transaction has
-- locked is left for another time: a claim waits for no lock, and to discard a message writes to it. A bare time would make
-- another index seem to fit.
SELECT q.id, q.group_id, coalesce(q.expires <= :now, false)
  FROM postroom_queue q
  CROSS JOIN LATERAL (
        SELECT m.id FROM postroom_message m WHERE m.id = q.id LIMIT 1 FOR UPDATE SKIP LOCKED) m
 WHERE q.id = ANY (:ids::bigint[]) AND coalesce(q.available_at, '-infinity') <= :now
   AND (q.state = 1 OR q.lease_until <= :now)
   AND (q.expires <= :now OR q.deliveries >= :most::integer OR q.lost_leases + (q.state = 2)::integer >= :most_lost::integer)
 ORDER BY q.id
   FOR UPDATE OF q SKIP LOCKED

-- name: hints
-- Rows of a FIFO box whose time has come, and lines that were nudged. No row is locked yet: a claim must not keep others
-- from what it does not take. But their groups are: from here on no other claim comes to them, and what the next statement
-- reads of them is what is now. Those that another claim is at are passed by, up to a point, which also keeps the planner
-- from asking for locks of what is not wanted.
SELECT h.id, h.group_id, h.expires, h.deliveries, h.lost_leases, :now,
       (current_setting('transaction_isolation') = 'read committed')::integer
  FROM ((SELECT n.id, n.group_id, NULL::timestamptz AS expires, 0 AS deliveries, 0 AS lost_leases
           FROM postroom_nudge n
          WHERE n.box = :box AND n.id <> ALL (:seen::bigint[])
          ORDER BY n.id
          LIMIT :limit + 1000)
        UNION ALL
        (SELECT q.id, q.group_id, q.expires, q.deliveries, q.lost_leases + (q.state = 2)::integer
           FROM postroom_queue q
          WHERE q.box = :box AND q.available_at <= :now AND (q.state = 1 OR q.lease_until <= :now)
            AND q.id <> ALL (:seen::bigint[])
            AND (:topics::text[] IS NULL OR (SELECT topic FROM postroom_message m WHERE m.id = q.id) = ANY (:topics))
          ORDER BY q.available_at, q.id
          LIMIT :limit + 1000)) h
 WHERE h.group_id IS NULL
    OR pg_try_advisory_xact_lock(hashtextextended('postroom_queue line ' || :box || ' ' || h.group_id, 0))
 LIMIT :limit

-- name: lines
-- Groups from their fronts, in the order given; of a group that is held, only the first in line. It ends when there is
-- enough. A line without members has one row, whose id is 0. The last column is true where a member is claimed: if no
-- member holds the group, those leases have passed, and must be ended with what is taken now.
SELECT g.group_id, holder.id, coalesce(l.id, 0), coalesce(l.state, 0)::integer, l.available_at, coalesce(l.fence, 0),
       l.expires, coalesce(l.deliveries, 0), coalesce(l.lost_leases + (l.state = 2)::integer, 0), coalesce(l.topic, ''),
       claimed.id IS NOT NULL
  FROM unnest(:groups::text[]) AS g (group_id)
  LEFT JOIN LATERAL (
            SELECT q.id FROM postroom_queue q WHERE q.box = :box AND q.holds = g.group_id LIMIT 1) claimed ON true
  LEFT JOIN LATERAL (
            SELECT q.id FROM postroom_queue q
             WHERE claimed.id IS NOT NULL AND q.box = :box AND q.holds = g.group_id
               AND (q.lease_until > :now OR q.id = ANY (:in_hand::bigint[]))
             LIMIT 1) holder ON true
  LEFT JOIN LATERAL (
            SELECT q.id, q.state, q.available_at, q.fence, q.expires, q.deliveries, q.lost_leases,
                   CASE WHEN :topical::boolean THEN (SELECT topic FROM postroom_message m WHERE m.id = q.id) END AS topic
              FROM postroom_queue q
             WHERE q.box = ANY (ARRAY[:box]) AND q.group_id = g.group_id
               AND NOT (q.fence < 0 AND q.available_at > :now)
             ORDER BY q.box, q.id
             LIMIT CASE WHEN holder.id IS NULL THEN :limit ELSE 1 END) l ON true
 LIMIT :limit

-- name: take
-- The fronts that were read, and what stands in no line. Since the groups were locked, no other claim can have taken from
-- them; but their members may have been settled, renewed or put again, or are locked for that. So a line is taken only up
-- to the first member that is locked or has changed: nothing is overtaken. `nth` is a member's place in its front; where
-- those before it were not all locked, its number among the locked ones is another. Of groups in which leases have passed
-- (`held`), all those leases are locked first: if one was renewed since the group was read, the group is left alone.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :nths::text::integer[] AS nths, :places::text::integer[] AS places
), claimed AS MATERIALIZED (
    SELECT g.group_id, b.id
      FROM unnest(:held::text[]) AS g (group_id)
      CROSS JOIN LATERAL (
            SELECT b.id FROM postroom_queue b WHERE b.box = :box AND b.holds = g.group_id OFFSET 0) b
), passed AS MATERIALIZED (
    SELECT q.id FROM postroom_queue q
     WHERE q.id = ANY (ARRAY (SELECT id FROM claimed)) AND q.state = 2 AND q.lease_until <= :now
       FOR NO KEY UPDATE OF q SKIP LOCKED
), renewed AS MATERIALIZED (
    SELECT group_id FROM claimed WHERE id NOT IN (SELECT id FROM passed)
), locked AS MATERIALIZED (
    SELECT q.id, q.group_id, ((SELECT nths FROM given))[width_bucket(q.id, (SELECT ids FROM given))] AS nth
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND (q.available_at IS NULL OR q.available_at <= :now) AND (q.state = 1 OR q.lease_until <= :now)
       AND coalesce(q.group_id, '') <> ALL (ARRAY (SELECT group_id FROM renewed))
       FOR NO KEY UPDATE OF q SKIP LOCKED
), judged AS MATERIALIZED (
    SELECT l.id, l.nth, row_number() OVER (PARTITION BY l.group_id, l.nth IS NULL ORDER BY l.nth) AS number
      FROM locked l
), taken AS (
    UPDATE postroom_queue q
       SET state = 2, owner = :owner, fence = greatest(q.fence, 0) + 1, deliveries = q.deliveries + 1,
           lost_leases = q.lost_leases + (q.state = 2)::integer, lease_until = :until, available_at = :until, stale = 0,
           holds = q.group_id
     WHERE q.id = ANY (ARRAY (SELECT id FROM judged WHERE nth IS NULL OR number = nth))
    RETURNING q.id, q.attempt, q.deliveries, q.last_error, q.fence, q.lost_leases, q.group_id,
              width_bucket(q.id, (SELECT ids FROM given)) AS n
), ended AS (
    -- The worker that held a group before has lost all of it, not only what is taken now.
    UPDATE postroom_queue q SET state = 1, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL
     WHERE q.state = 2 AND q.id = ANY (ARRAY (
            SELECT c.id FROM claimed c
             WHERE c.id > (SELECT max(t.id) FROM taken t WHERE t.group_id = c.group_id)))
)
SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       t.attempt, t.deliveries, t.last_error, t.fence, t.lost_leases
  FROM taken t
  CROSS JOIN LATERAL (SELECT * FROM postroom_message m WHERE m.id = t.id LIMIT 1) m
 ORDER BY ((SELECT places FROM given))[t.n]

-- name: sleep
-- Not its turn: it waits until the first in line leaves. That row is locked meanwhile, so that it cannot leave without
-- seeing the rows that it must wake; and it must be in the line, and awake or dead in its place. Where that is not so, the
-- hint stays. FOR KEY SHARE is enough: what leaves a line is deleted, or locked FOR UPDATE first; and it does not hold up
-- a renewal. A nudge has then done its work, as it has where the line has no member (0).
WITH behind AS MATERIALIZED (
    SELECT s.id, s.ahead, ahead.group_id
      FROM unnest(:id::bigint[], :ahead::bigint[]) AS s (id, ahead)
      CROSS JOIN LATERAL (
            SELECT a.group_id FROM postroom_queue a
             WHERE a.id = s.ahead
               AND (a.state = 4 OR a.available_at IS NOT NULL AND NOT (a.fence < 0 AND a.available_at > :now))
             LIMIT 1
               FOR KEY SHARE SKIP LOCKED) ahead
), sleepers AS MATERIALIZED (
    SELECT q.id
      FROM behind b
      CROSS JOIN LATERAL (
            SELECT q.id FROM postroom_queue q
             WHERE q.id = b.id AND q.id > b.ahead AND coalesce(q.group_id, '') = b.group_id
               AND coalesce(q.available_at, 'infinity') <= :now AND (q.state = 1 OR q.lease_until <= :now)
             LIMIT 1
               FOR NO KEY UPDATE SKIP LOCKED) q
), spent AS MATERIALIZED (
    SELECT n.id
      FROM behind b
      CROSS JOIN LATERAL (SELECT n.id, n.group_id FROM postroom_nudge n WHERE n.id = b.id LIMIT 1) n
     WHERE n.group_id = b.group_id
), nudges AS (
    DELETE FROM postroom_nudge n
     WHERE n.id = ANY (ARRAY (
            SELECT id FROM spent
             UNION ALL
            SELECT s.id FROM unnest(:id::bigint[], :ahead::bigint[]) AS s (id, ahead) WHERE s.ahead = 0))
)
UPDATE postroom_queue q
   SET state = 1, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL, fence = greatest(q.fence, 0)
 WHERE q.id = ANY (ARRAY (SELECT id FROM sleepers))

-- name: renew
-- Returns the claims that still hold, and whether each was renewed. A row that another transaction has locked is not waited
-- for here: it must not hold up the others.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences
), held AS MATERIALIZED (
    SELECT q.id
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.owner = :owner AND q.state = 2
), free AS MATERIALIZED (
    SELECT q.id
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.owner = :owner AND q.state = 2
       FOR NO KEY UPDATE OF q SKIP LOCKED
), renewed AS (
    UPDATE postroom_queue q
       SET lease_until = :until, available_at = CASE WHEN q.holds IS NULL THEN q.available_at ELSE :until END
     WHERE q.id = ANY (ARRAY (SELECT id FROM free))
    RETURNING q.id
)
SELECT id, id IN (SELECT id FROM renewed) FROM held

-- name: renew_locked
-- The same, and waits for locks.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences
), held AS MATERIALIZED (
    SELECT q.id
      FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.owner = :owner AND q.state = 2
     ORDER BY q.id
       FOR NO KEY UPDATE OF q
)
UPDATE postroom_queue q
   SET lease_until = :until, available_at = CASE WHEN q.holds IS NULL THEN q.available_at ELSE :until END
 WHERE q.id = ANY (ARRAY (SELECT id FROM held))
RETURNING q.id, true

-- name: late
-- Leases outside of lines that have passed, among as many rows as one statement should read. No index knows of leases (a claim is a HOT
-- update), so all that is ready is read, in order; the next statement goes on where this one has ended. Returns the ids,
-- and how far it read: NULL where there is no more.
WITH ready AS MATERIALIZED (
    SELECT q.id, q.available_at, q.lease_until, q.state = 2 AND q.lease_until <= :now AND q.holds IS NULL AS late
      FROM postroom_queue q
     WHERE q.box = :box AND q.available_at <= :now
       AND (q.available_at, q.id) > (coalesce(:since, '-infinity'::timestamptz), :after::bigint)
     ORDER BY q.available_at, q.id
     LIMIT :rows
), locked AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE id = ANY (ARRAY (SELECT id FROM ready WHERE late ORDER BY lease_until, id LIMIT :limit))
       AND state = 2 AND lease_until <= :now
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
)
SELECT array(SELECT id FROM locked), last.available_at, last.id
  FROM (SELECT count(*) AS read FROM ready) AS counted
  LEFT JOIN LATERAL (
        SELECT available_at, id FROM ready WHERE counted.read = :rows ORDER BY available_at DESC, id DESC LIMIT 1
  ) AS last ON true

-- name: late_in_lines
-- The same of what holds a line: an index knows of that.
SELECT id FROM postroom_queue
 WHERE id = ANY (ARRAY (SELECT id FROM postroom_queue
                         WHERE box = :box AND holds IS NOT NULL AND lease_until <= :now
                         ORDER BY lease_until, id LIMIT :limit))
   AND state = 2 AND lease_until <= :now
 ORDER BY id
   FOR NO KEY UPDATE SKIP LOCKED

-- name: free
UPDATE postroom_queue SET state = 1, owner = NULL, lease_until = NULL, holds = NULL, lost_leases = lost_leases + 1
 WHERE id = ANY (:id::bigint[])

-- name: expired
SELECT id, group_id FROM postroom_queue
 WHERE box = :box AND expires <= :now AND state = 1
 ORDER BY expires, id
 LIMIT :limit
   FOR UPDATE SKIP LOCKED

-- == settle ==

-- name: held_by_name
-- Each row of the queue is looked up: a join might read all of them.
SELECT m.source, q.id, q.fence
  FROM postroom_message m
  LEFT JOIN LATERAL (
        SELECT q.id, q.fence FROM postroom_queue q
         WHERE q.id = m.id AND q.owner = :owner AND q.state = 2 LIMIT 1) q ON true
 WHERE m.box = :box AND m.message_id = :message_id AND m.retired = 0

-- name: hold
-- Claims that still hold, and go on holding while this transaction lasts.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences
)
SELECT q.id, q.attempt, q.group_id, q.stale
  FROM postroom_queue q
 WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
   AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
   AND q.box = :box AND q.owner = :owner AND q.state = 2
 ORDER BY q.id
   FOR UPDATE OF q

-- name: end_batch
UPDATE postroom_queue q SET state = 1, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL
 WHERE q.state = 2 AND q.id = ANY (ARRAY (
        SELECT behind.id
          FROM unnest(:box::text[], :group_id::text[], :id::bigint[]) AS e (box, group_id, id)
          CROSS JOIN LATERAL (
                SELECT b.id FROM postroom_queue b
                 WHERE b.box = e.box AND b.holds = e.group_id AND b.id > e.id OFFSET 0) behind))

-- name: wait
UPDATE postroom_queue q
   SET state = 1, owner = NULL, lease_until = NULL, holds = NULL, lost_leases = 0,
       attempt = (:attempt::integer[])[width_bucket(q.id, :id::bigint[])],
       available_at = (:at::timestamptz[])[width_bucket(q.id, :id::bigint[])],
       last_error = coalesce((:error::text[])[width_bucket(q.id, :id::bigint[])], q.last_error)
 WHERE q.id = ANY (:id::bigint[])

-- name: bury
-- What leaves its line is locked FOR UPDATE first: see `sleep`.
WITH locked AS MATERIALIZED (
    SELECT id FROM postroom_queue WHERE id = ANY (:id::bigint[]) ORDER BY id FOR UPDATE
)
UPDATE postroom_queue q
   SET state = 4, owner = NULL, lease_until = NULL, available_at = NULL, holds = NULL, died_at = :now,
       last_error = (:error::text[])[width_bucket(q.id, :id::bigint[])], group_id = (:group_id::text[])[width_bucket(q.id, :id::bigint[])],
       attempt = q.attempt + (:counted::integer[])[width_bucket(q.id, :id::bigint[])], fence = greatest(q.fence, 0)
 WHERE q.id = ANY (ARRAY (SELECT id FROM locked))

-- name: set_error
UPDATE postroom_queue q
   SET last_error = (:error::text[])[width_bucket(q.id, :id::bigint[])], attempt = q.attempt + (:counted::integer[])[width_bucket(q.id, :id::bigint[])]
 WHERE q.id = ANY (:id::bigint[])

-- name: complete
-- The ids come in order and are looked up one by one, so their rows are locked in that order: to lock them first would
-- be to write each of them twice. The answer is one row: what was completed, and the lines that have moved on.
WITH given AS MATERIALIZED (
    SELECT :ids::text::bigint[] AS ids, :fences::text::bigint[] AS fences
), gone AS (
    DELETE FROM postroom_queue q
     WHERE q.id = ANY ((SELECT ids FROM given)::bigint[])
       AND q.fence = ((SELECT fences FROM given))[width_bucket(q.id, (SELECT ids FROM given))]
       AND q.box = :box AND q.owner = :owner AND q.state = 2
    RETURNING q.id, q.owner, q.attempt, q.deliveries, q.last_error, q.group_id
), kept AS (
    INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
    SELECT id, :box, :now, owner, 'handled', attempt, deliveries, last_error FROM gone
)
SELECT array(SELECT id FROM gone), array(SELECT DISTINCT group_id FROM gone WHERE group_id IS NOT NULL)

-- name: finish
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT id, box, :now, NULL, :ending, attempt, deliveries, last_error
  FROM postroom_queue
 WHERE id = ANY (:ids::bigint[])

-- name: dequeue
DELETE FROM postroom_queue WHERE id = ANY (:ids::bigint[]) RETURNING group_id

-- name: blank
UPDATE postroom_message SET payload = '', format = 'text', headers = NULL WHERE id = ANY (:ids::bigint[])

-- name: promote
-- The first of each line that no other transaction is about to remove. If it sleeps, it wakes; otherwise it is locked, so
-- that it cannot leave without seeing the rows behind it. FOR KEY SHARE is enough for that: see `sleep`. To wake a row that
-- need not wake does no harm. Where all of a line is locked, or the one to wake is, the line is nudged instead: an insert
-- cannot be passed by. So it is in a caller's transaction that reads an old snapshot, and does not see which rows sleep.
WITH looked AS MATERIALIZED (
    SELECT g.group_id, first.id AS first, first.sleeps, front.id AS front, front.sleeps AS front_sleeps
      FROM unnest(:groups::text[]) AS g (group_id)
      LEFT JOIN LATERAL (
            SELECT q.id, q.state = 1 AND q.available_at IS NULL AS sleeps
              FROM postroom_queue q
             WHERE q.box = ANY (ARRAY[:box]) AND q.group_id = g.group_id
               AND NOT (q.fence < 0 AND q.available_at > :now)
             ORDER BY q.box, q.id
             LIMIT 1) first ON true
      LEFT JOIN LATERAL (
            SELECT q.id, q.state = 1 AND q.available_at IS NULL AS sleeps
              FROM postroom_queue q
             WHERE q.box = ANY (ARRAY[:box]) AND q.group_id = g.group_id
               AND NOT (q.fence < 0 AND q.available_at > :now)
             ORDER BY q.box, q.id
             LIMIT 1
               FOR KEY SHARE SKIP LOCKED) front ON true
), free AS MATERIALIZED (
    SELECT q.id FROM postroom_queue q
     WHERE q.id = ANY (ARRAY (SELECT front FROM looked WHERE front_sleeps)) AND q.state = 1
       AND coalesce(q.available_at, 'infinity') = 'infinity'  -- a bare NULL would make another index seem to fit
       FOR NO KEY UPDATE SKIP LOCKED
), nudged AS (
    INSERT INTO postroom_nudge (id, box, group_id)
    SELECT nextval('postroom_ids'), :box, group_id
      FROM looked
     WHERE first IS NOT NULL
           AND (front IS NULL OR sleeps AND first <> front OR front_sleeps AND front NOT IN (SELECT id FROM free))
        OR current_setting('transaction_isolation') <> 'read committed'
)
UPDATE postroom_queue q SET available_at = :now
 WHERE q.id = ANY (ARRAY (SELECT id FROM free))

-- == replay, purge, find ==

-- name: lock_dead
SELECT id FROM postroom_queue WHERE id = ANY (:ids::bigint[]) AND state = 4 ORDER BY id FOR UPDATE

-- name: find_waiting
-- Waiting messages, in id order. No index has all of them: the ready index has those that can be claimed, now or later, and
-- the index of lines has those that stand behind the first. The bounds that exclude nothing are the leading columns of these
-- indexes; a bare id would make the primary key seem to fit.
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
-- A row that another transaction has locked is waited for: a claim takes it, and then it is left alone, or the lock has
-- another reason, and then it must not be missed. FOR UPDATE, since it leaves its line: see `sleep`.
SELECT id FROM postroom_queue WHERE id = ANY (:ids::bigint[]) AND state = 1 ORDER BY id FOR UPDATE

-- name: revive
UPDATE postroom_queue q
   SET state = 1, died_at = NULL, attempt = 0, deliveries = 0, lost_leases = 0, expires = NULL,
       group_id = (:group_id::text[])[width_bucket(q.id, :id::bigint[])], available_at = (:at::timestamptz[])[width_bucket(q.id, :id::bigint[])],
       fence = CASE WHEN q.fence = 0 THEN 1 ELSE q.fence END
 WHERE q.id = ANY (:id::bigint[])

-- name: forget_expires
UPDATE postroom_message SET expires = NULL WHERE id = ANY (:id::bigint[]) AND expires IS NOT NULL

-- name: find
SELECT e.*
  FROM (SELECT id, box FROM postroom_message WHERE id > :after ORDER BY id LIMIT :looks) n
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

-- name: find_far
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

-- name: find_listed
-- A bare box would make another index seem to fit.
SELECT e.* FROM postroom_entry e WHERE e.id = ANY (:ids::bigint[]) AND e.box || '' = :box ORDER BY e.id

-- name: purge_done
-- Each message is looked up beside its line in the ledger: a join would read all of both first, and so would any order
-- but that of the index.
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
DELETE FROM postroom_ledger l WHERE l.id = ANY (ARRAY (SELECT id FROM old)) RETURNING l.id

-- name: purge_dead
WITH old AS MATERIALIZED (
    SELECT id FROM postroom_queue
     WHERE (box, id) > (:box, 0) AND box <= :box AND died_at IS NOT NULL AND state = 4 AND died_at <= :cutoff
     ORDER BY box, id
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
)
DELETE FROM postroom_queue q WHERE q.id = ANY (ARRAY (SELECT id FROM old)) RETURNING q.id, q.group_id

-- name: purge_seen
-- What the index contains, in its words.
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

-- name: forget
DELETE FROM postroom_message WHERE id = ANY (:ids::bigint[])
