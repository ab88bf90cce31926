-- Messages, a queue of what is left to do, and a ledger of what is done (docs/decisions/0003 and 0013). The comment at
-- the top of statements.sql describes how a row changes, and which locks protect it.
--
-- COLLATE "C" compares keys byte by byte, which is faster than the rules of a language. There are no foreign keys: only
-- Postroom writes these tables, and a check costs as much as an insert.

-- The ids of messages. Gaps do no harm.
CREATE SEQUENCE postroom_ids;

-- The order with which each box was opened first. A process that opens it with another order gets an error.
CREATE TABLE postroom_box (
    box   text     COLLATE "C" NOT NULL PRIMARY KEY,
    fifo  smallint NOT NULL                           -- 1: the messages of a group are handled in order
);

-- The soft lease of these tables: the process that looks for messages, if a room has many stores. One row.
CREATE TABLE postroom_attendant (
    id       smallint NOT NULL PRIMARY KEY,           -- 1
    process  uuid,
    until    timestamptz                              -- the end of the lease
);

INSERT INTO postroom_attendant (id) VALUES (1);

-- The content of messages. Only a put with the same key changes a row.
CREATE TABLE postroom_message (
    id              bigint      NOT NULL PRIMARY KEY,
    box             text        COLLATE "C" NOT NULL,
    source          text        COLLATE "C" NOT NULL,
    message_id      text        COLLATE "C" NOT NULL,
    retired         bigint      NOT NULL DEFAULT 0,   -- 0: the message has its key; its id: the deduplication window has passed
    topic           text        NOT NULL,
    payload         bytea       NOT NULL,             -- UTF-8 where format is json or text
    format          text        NOT NULL,
    headers         text,
    correlation_id  text,
    group_id        text,
    collapse_key    text,
    hash            bytea,
    hash_algorithm  text,
    due             timestamptz,
    expires         timestamptz,
    received_at     timestamptz,
    first_seen      timestamptz NOT NULL,
    last_seen       timestamptz NOT NULL,
    revision        integer     NOT NULL DEFAULT 0
);

-- message_id comes before source, so that a message id without its source is found by the same index.
CREATE UNIQUE INDEX postroom_message_key ON postroom_message (box, message_id, source, retired);

-- The progress of messages that are not done. The row is deleted when the message is done.
--
-- A claim of a message without group is a HOT update: it changes no column that is in an index or in the condition of
-- one, so the lease has its own column and no index names the state. The fillfactor leaves room for the new row version
-- on the same page; it is larger than the old one. Every claim and every ack leaves a dead row version. So autovacuum
-- starts after a number of changes, not after a share of the table, and runs without pauses.
CREATE TABLE postroom_queue (
    id            bigint   NOT NULL PRIMARY KEY,
    available_at  timestamptz,                        -- claimable from then on; NULL: sleeps, seen or dead
    lease_until   timestamptz,                        -- claimed: the end of the lease
    expires       timestamptz,
    died_at       timestamptz,
    owner         uuid,
    fence         bigint   NOT NULL DEFAULT 0,        -- number of claims so far
    attempt       integer  NOT NULL DEFAULT 0,
    deliveries    integer  NOT NULL DEFAULT 0,
    lost_leases   integer  NOT NULL DEFAULT 0,        -- leases in a row that expired without an outcome
    state         smallint NOT NULL,                  -- 0 seen, 1 waiting, 2 claimed, 4 dead
    stale         smallint NOT NULL DEFAULT 0,        -- 1: the content was replaced while it was claimed
    delayed       boolean  NOT NULL DEFAULT false,    -- it has a due time, and is in its line only from available_at on
    box           text     COLLATE "C" NOT NULL,
    group_id      text     COLLATE "C",               -- the FIFO group in whose line it is
    holds         text     COLLATE "C",               -- claimed: the group that it holds, equal to group_id
    collapse_key  text     COLLATE "C",
    last_error    text,
    waits_for     uuid,                               -- the join whose end it waits for: it is not claimed before
    watched       boolean                             -- true: a join waits for its end
) WITH (fillfactor = 40,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);

-- The ready index has only rows that can be claimed, now or later. Dead and sleeping rows cost a claim nothing.
CREATE INDEX postroom_queue_ready ON postroom_queue (box, available_at, id) WHERE available_at IS NOT NULL;
CREATE INDEX postroom_queue_line ON postroom_queue (box, group_id, id) WHERE group_id IS NOT NULL;
CREATE INDEX postroom_queue_held ON postroom_queue (box, holds, id) WHERE holds IS NOT NULL;
CREATE INDEX postroom_queue_collapse ON postroom_queue (box, collapse_key) WHERE collapse_key IS NOT NULL;
CREATE INDEX postroom_queue_expires ON postroom_queue (box, expires) WHERE expires IS NOT NULL;
CREATE INDEX postroom_queue_dead ON postroom_queue (box, id) WHERE died_at IS NOT NULL;
-- Rows with state 0: only they have no time, no group and no time of death.
CREATE INDEX postroom_queue_seen ON postroom_queue (box, id)
 WHERE available_at IS NULL AND group_id IS NULL AND died_at IS NULL;

-- Groups that a claim must look at, because a row to wake was locked when the first left the line (see `promote`).
-- Almost always empty.
CREATE TABLE postroom_nudge (
    id        bigint NOT NULL PRIMARY KEY,
    box       text   COLLATE "C" NOT NULL,
    group_id  text   COLLATE "C" NOT NULL
);

CREATE INDEX postroom_nudge_box ON postroom_nudge (box, id);

-- Messages that are done. Rows are inserted, and deleted by purge.
CREATE TABLE postroom_ledger (
    id            bigint      NOT NULL PRIMARY KEY,
    completed_at  timestamptz NOT NULL,
    completed_by  uuid,
    attempt       integer     NOT NULL,
    deliveries    integer     NOT NULL,
    box           text        COLLATE "C" NOT NULL,
    ending        text        NOT NULL,               -- handled, marked, superseded, discarded, cancelled or joined
    last_error    text
);

CREATE INDEX postroom_ledger_completed ON postroom_ledger (box, completed_at);

-- Joins (docs/decisions/0015). The counts are NULL until the join has ended: a step is pending, completed or failed by
-- the state of its message.
CREATE TABLE postroom_join (
    id                   uuid        NOT NULL PRIMARY KEY,
    number               bigint      NOT NULL,          -- ascending in the order in which joins were started
    wait_id              bigint,                        -- the continuation
    deadline             timestamptz,
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL,
    expected_steps       integer,                       -- NULL: an open join
    attached_steps       integer     NOT NULL DEFAULT 0,  -- not counted in an open join
    completed_steps      integer,
    failed_steps         integer,
    status               smallint    NOT NULL DEFAULT 0,  -- 0 pending, 1 completed, 2 failed, 3 cancelled
    sealed               boolean     NOT NULL DEFAULT false,
    fails                boolean     NOT NULL DEFAULT true,  -- it fails if a step fails
    box                  text        COLLATE "C" NOT NULL,
    tenant_id            text        COLLATE "C" NOT NULL,
    metadata             text,
    on_complete_topic    text,
    on_complete_payload  bytea,
    on_complete_format   text,
    on_fail_topic        text,
    on_fail_payload      bytea,
    on_fail_format       text
);

CREATE UNIQUE INDEX postroom_join_number ON postroom_join (box, number);
CREATE INDEX postroom_join_ended ON postroom_join (box, updated_at) WHERE status <> 0;

-- The steps of joins. The outcome is NULL, unless the state of the message does not show it: 1 completed, 2 failed.
CREATE TABLE postroom_join_member (
    join_id      uuid        NOT NULL REFERENCES postroom_join (id) ON DELETE CASCADE,
    message_id   bigint      NOT NULL,
    attached_at  timestamptz NOT NULL,
    outcome      smallint,
    PRIMARY KEY (join_id, message_id)
);

CREATE INDEX postroom_join_member_message ON postroom_join_member (message_id);

-- The status of each step: 0 pending, 1 completed, 2 failed.
CREATE VIEW postroom_step AS
SELECT m.join_id, m.message_id, m.attached_at,
       CASE WHEN m.outcome IS NOT NULL THEN m.outcome::integer
            WHEN q.state = 4 THEN 2
            WHEN q.state IS NOT NULL THEN 0
            WHEN l.ending IN ('cancelled', 'discarded') THEN 2
            ELSE 1 END AS status
  FROM postroom_join_member m
  LEFT JOIN LATERAL (SELECT q.state FROM postroom_queue q WHERE q.id = m.message_id LIMIT 1) q ON m.outcome IS NULL
  LEFT JOIN LATERAL (
        SELECT l.ending FROM postroom_ledger l WHERE l.id = m.message_id LIMIT 1) l
         ON m.outcome IS NULL AND q.state IS NULL;

-- Messages with a queue row: content and progress. The columns are those of postroom_entry.
CREATE VIEW postroom_work AS
SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       q.state::integer AS state, q.attempt, q.deliveries, q.last_error, q.owner, q.fence,
       CASE q.state WHEN 2 THEN q.lease_until ELSE q.available_at END AS available_at,
       q.died_at AS completed_at, NULL::uuid AS completed_by, NULL::text AS ending, q.group_id AS line, m.box,
       q.lost_leases, q.waits_for
  FROM postroom_queue q
  JOIN postroom_message m ON m.id = q.id;

-- All messages: content and progress.
CREATE VIEW postroom_entry AS
SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       coalesce(q.state, 3)::integer AS state, coalesce(q.attempt, l.attempt) AS attempt,
       coalesce(q.deliveries, l.deliveries) AS deliveries, coalesce(q.last_error, l.last_error) AS last_error,
       q.owner, q.fence, CASE q.state WHEN 2 THEN q.lease_until ELSE q.available_at END AS available_at,
       coalesce(q.died_at, l.completed_at) AS completed_at, l.completed_by, l.ending, q.group_id AS line, m.box,
       q.lost_leases, q.waits_for
  FROM postroom_message m
  LEFT JOIN postroom_queue q ON q.id = m.id
  LEFT JOIN postroom_ledger l ON l.id = m.id;

-- For people: inboxes and outboxes, with names for states. A payload that is not text, or contains a zero byte, is
-- shown with escaped bytes.
CREATE VIEW postroom_inbox AS
SELECT substr(e.box, 7) AS inbox_name, e.source, e.message_id, e.topic,
       CASE WHEN e.format = 'bytes' OR position('\x00'::bytea IN e.payload) > 0 THEN encode(e.payload, 'escape')
            ELSE convert_from(e.payload, 'UTF8') END AS payload,
       e.hash,
       CASE e.state WHEN 0 THEN 'Seen' WHEN 3 THEN 'Done' WHEN 4 THEN 'Dead' ELSE 'Processing' END AS status,
       e.attempt, e.deliveries, e.last_error, e.owner AS owner_token,
       e.first_seen AS first_seen_utc, e.last_seen AS last_seen_utc, e.due AS due_time_utc,
       CASE e.state WHEN 1 THEN e.available_at END AS next_attempt_at,
       CASE e.state WHEN 2 THEN e.available_at END AS locked_until,
       e.completed_at AS processed_at, e.completed_by AS processed_by, e.ending, e.group_id, e.collapse_key,
       e.correlation_id, e.id
  FROM postroom_entry e
 WHERE e.box >= 'inbox:' AND e.box < 'inbox;';

CREATE VIEW postroom_outbox AS
SELECT e.id, substr(e.box, 8) AS outbox_name, e.message_id, e.topic,
       CASE WHEN e.format = 'bytes' OR position('\x00'::bytea IN e.payload) > 0 THEN encode(e.payload, 'escape')
            ELSE convert_from(e.payload, 'UTF8') END AS payload,
       e.correlation_id,
       CASE e.state WHEN 1 THEN 'Ready' WHEN 2 THEN 'InProgress' WHEN 3 THEN 'Done' WHEN 4 THEN 'Failed' ELSE 'Seen' END
           AS status,
       e.state = 3 AS is_processed, e.attempt AS retry_count, e.deliveries, e.last_error, e.owner AS owner_token,
       e.first_seen AS created_at, e.due AS due_time_utc,
       CASE e.state WHEN 1 THEN e.available_at END AS next_attempt_at,
       CASE e.state WHEN 2 THEN e.available_at END AS locked_until,
       CASE e.state WHEN 3 THEN e.completed_at END AS processed_at,
       e.completed_by AS processed_by, e.ending, e.group_id, e.collapse_key
  FROM postroom_entry e
 WHERE e.box >= 'outbox:' AND e.box < 'outbox;';

CREATE VIEW postroom_outbox_join AS
SELECT j.id AS join_id, substr(j.box, 8) AS outbox_name, j.tenant_id, j.expected_steps,
       coalesce(j.completed_steps, s.completed) AS completed_steps, coalesce(j.failed_steps, s.failed) AS failed_steps,
       j.status, j.created_at AS created_utc, j.updated_at AS last_updated_utc, j.metadata
  FROM postroom_join j
  LEFT JOIN LATERAL (
        SELECT (count(*) FILTER (WHERE s.status = 1))::integer AS completed,
               (count(*) FILTER (WHERE s.status = 2))::integer AS failed
          FROM postroom_step s WHERE s.join_id = j.id) s ON j.completed_steps IS NULL;

CREATE VIEW postroom_outbox_join_member AS
SELECT s.join_id, s.message_id AS outbox_message_id, s.status, s.attached_at AS created_utc FROM postroom_step s;
