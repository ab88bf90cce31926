-- Messages, a queue of what is left to do, and a ledger of what is done (docs/decisions/0003).
--
-- SQLite has no type for times: they are microseconds since 1970 in UTC, as integers. The views show them as text.

-- The last id. Ids are reserved before a bulk insert, and never used again.
CREATE TABLE postroom_sequence (
    name   TEXT    NOT NULL PRIMARY KEY,
    value  INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO postroom_sequence (name, value) VALUES ('message', 0);

-- The order with which each box was opened first. A process that opens it with another order gets an error.
CREATE TABLE postroom_box (
    box   TEXT    NOT NULL PRIMARY KEY,
    fifo  INTEGER NOT NULL                       -- 1: the messages of a group are handled in order
) WITHOUT ROWID;

-- The soft lease of these tables: the process that looks for messages, if a room has many stores. One row.
CREATE TABLE postroom_attendant (
    id       INTEGER NOT NULL PRIMARY KEY,       -- 1
    process  TEXT,
    until    INTEGER                             -- the end of the lease
);

INSERT INTO postroom_attendant (id) VALUES (1);

-- The content of messages. Only a put with the same key changes a row.
CREATE TABLE postroom_message (
    id              INTEGER NOT NULL PRIMARY KEY,
    box             TEXT    NOT NULL,
    source          TEXT    NOT NULL,
    message_id      TEXT    NOT NULL,
    retired         INTEGER NOT NULL DEFAULT 0,  -- 0: the message has its key; its id: the deduplication window has passed
    topic           TEXT    NOT NULL,
    payload                 NOT NULL,            -- TEXT or BLOB, as it was put
    format          TEXT    NOT NULL,
    headers         TEXT,
    correlation_id  TEXT,
    group_id        TEXT,
    collapse_key    TEXT,
    hash            BLOB,
    hash_algorithm  TEXT,
    due             INTEGER,
    expires         INTEGER,
    received_at     INTEGER,
    first_seen      INTEGER NOT NULL,
    last_seen       INTEGER NOT NULL,
    revision        INTEGER NOT NULL DEFAULT 0
);

-- message_id comes before source, so that a message id without its source is found by the same index.
CREATE UNIQUE INDEX postroom_message_key ON postroom_message (box, message_id, source, retired);

-- The progress of messages that are not done. The row is deleted when the message is done. A row sleeps if it waits and
-- available_at is NULL: it is behind the first in the line of its group.
CREATE TABLE postroom_queue (
    id            INTEGER NOT NULL PRIMARY KEY REFERENCES postroom_message (id),
    box           TEXT    NOT NULL,
    state         INTEGER NOT NULL,              -- 0 seen, 1 waiting, 2 claimed, 4 dead
    available_at  INTEGER,                       -- waiting: claimable from then on; claimed: the end of the lease
    owner         TEXT,
    fence         INTEGER NOT NULL DEFAULT 0,    -- number of claims so far
    delayed       INTEGER NOT NULL DEFAULT 0,    -- 1: it has a due time, and is in its line only from available_at on
    attempt       INTEGER NOT NULL DEFAULT 0,
    deliveries    INTEGER NOT NULL DEFAULT 0,
    lost_leases   INTEGER NOT NULL DEFAULT 0,    -- leases in a row that expired without an outcome
    group_id      TEXT,                          -- the FIFO group in whose line it is
    collapse_key  TEXT,
    expires       INTEGER,
    stale         INTEGER NOT NULL DEFAULT 0,    -- 1: the content was replaced while it was claimed
    last_error    TEXT,
    died_at       INTEGER,
    waits_for     TEXT,                          -- the join whose end it waits for: it is not claimed before
    watched       INTEGER                        -- 1: a join waits for its end
);

-- The ready index has only rows that can be claimed, now or later. Dead and sleeping rows cost a claim nothing.
CREATE INDEX postroom_queue_ready ON postroom_queue (box, state, available_at, id) WHERE available_at IS NOT NULL;
CREATE INDEX postroom_queue_line ON postroom_queue (box, group_id, id) WHERE group_id IS NOT NULL;
CREATE INDEX postroom_queue_held ON postroom_queue (box, group_id) WHERE state = 2 AND group_id IS NOT NULL;
CREATE INDEX postroom_queue_collapse ON postroom_queue (box, collapse_key) WHERE collapse_key IS NOT NULL;
CREATE INDEX postroom_queue_expires ON postroom_queue (box, expires) WHERE expires IS NOT NULL;
CREATE INDEX postroom_queue_dead ON postroom_queue (box, id) WHERE state = 4;
CREATE INDEX postroom_queue_seen ON postroom_queue (box, id) WHERE state = 0;

-- Messages that are done.
CREATE TABLE postroom_ledger (
    id            INTEGER NOT NULL PRIMARY KEY REFERENCES postroom_message (id),
    box           TEXT    NOT NULL,
    completed_at  INTEGER NOT NULL,
    completed_by  TEXT,
    ending        TEXT    NOT NULL,              -- handled, marked, superseded, discarded, cancelled or joined
    attempt       INTEGER NOT NULL,
    deliveries    INTEGER NOT NULL,
    last_error    TEXT
);

CREATE INDEX postroom_ledger_completed ON postroom_ledger (box, completed_at);

-- Joins (docs/decisions/0015). The counts are NULL until the join has ended: a step is pending, completed or failed by
-- the state of its message.
CREATE TABLE postroom_join (
    id                   TEXT        NOT NULL PRIMARY KEY,
    number               INTEGER     NOT NULL,          -- ascending in the order in which joins were started
    wait_id              INTEGER,                       -- the continuation
    deadline             INTEGER,
    created_at           INTEGER     NOT NULL,
    updated_at           INTEGER     NOT NULL,
    expected_steps       INTEGER,                       -- NULL: an open join
    attached_steps       INTEGER     NOT NULL DEFAULT 0,  -- not counted in an open join
    completed_steps      INTEGER,
    failed_steps         INTEGER,
    status               INTEGER     NOT NULL DEFAULT 0,  -- 0 pending, 1 completed, 2 failed, 3 cancelled
    sealed               INTEGER     NOT NULL DEFAULT 0,
    fails                INTEGER     NOT NULL DEFAULT 1,  -- it fails if a step fails
    box                  TEXT        NOT NULL,
    tenant_id            TEXT        NOT NULL,
    metadata             TEXT,
    on_complete_topic    TEXT,
    on_complete_payload,
    on_complete_format   TEXT,
    on_fail_topic        TEXT,
    on_fail_payload,
    on_fail_format       TEXT
);

CREATE UNIQUE INDEX postroom_join_number ON postroom_join (box, number);
CREATE INDEX postroom_join_ended ON postroom_join (box, updated_at) WHERE status <> 0;

-- The steps of joins. The outcome is NULL, unless the state of the message does not show it: 1 completed, 2 failed.
CREATE TABLE postroom_join_member (
    join_id      TEXT        NOT NULL REFERENCES postroom_join (id),
    message_id   INTEGER     NOT NULL,
    attached_at  INTEGER     NOT NULL,
    outcome      INTEGER,
    PRIMARY KEY (join_id, message_id)
);

CREATE INDEX postroom_join_member_message ON postroom_join_member (message_id);

-- The status of each step: 0 pending, 1 completed, 2 failed.
CREATE VIEW postroom_step AS
SELECT m.join_id, m.message_id, m.attached_at,
       CASE WHEN m.outcome IS NOT NULL THEN m.outcome
            WHEN q.state = 4 THEN 2
            WHEN q.state IS NOT NULL THEN 0
            WHEN l.ending IN ('cancelled', 'discarded') THEN 2
            ELSE 1 END AS status
  FROM postroom_join_member m
  LEFT JOIN postroom_queue q ON q.id = m.message_id
  LEFT JOIN postroom_ledger l ON l.id = m.message_id;

-- Messages with a queue row: content and progress. The columns are those of postroom_entry.
CREATE VIEW postroom_work AS
SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       q.state, q.attempt, q.deliveries, q.last_error, q.owner, q.fence, q.available_at,
       q.died_at AS completed_at, NULL AS completed_by, NULL AS ending, q.group_id AS line, m.box,
       q.lost_leases + (q.state = 2) AS lost_leases,  -- a claim reads only expired leases: it counts them as lost
       q.waits_for
  FROM postroom_queue q
  JOIN postroom_message m ON m.id = q.id;

-- All messages: content and progress.
CREATE VIEW postroom_entry AS
SELECT m.id, m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id,
       m.collapse_key, m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision,
       coalesce(q.state, 3) AS state, coalesce(q.attempt, l.attempt) AS attempt,
       coalesce(q.deliveries, l.deliveries) AS deliveries, coalesce(q.last_error, l.last_error) AS last_error,
       q.owner, q.fence, q.available_at,
       coalesce(q.died_at, l.completed_at) AS completed_at, l.completed_by, l.ending, q.group_id AS line, m.box,
       q.lost_leases, q.waits_for
  FROM postroom_message m
  LEFT JOIN postroom_queue q ON q.id = m.id
  LEFT JOIN postroom_ledger l ON l.id = m.id;

-- For people: inboxes and outboxes, with names for states.
CREATE VIEW postroom_inbox AS
SELECT substr(e.box, 7) AS inbox_name, e.source, e.message_id, e.topic, e.payload, e.hash,
       CASE e.state WHEN 0 THEN 'Seen' WHEN 3 THEN 'Done' WHEN 4 THEN 'Dead' ELSE 'Processing' END AS status,
       e.attempt, e.deliveries, e.last_error, e.owner AS owner_token,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.first_seen / 1e6, 'unixepoch') AS first_seen_utc,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.last_seen / 1e6, 'unixepoch') AS last_seen_utc,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.due / 1e6, 'unixepoch') AS due_time_utc,
       CASE e.state WHEN 1 THEN strftime('%Y-%m-%dT%H:%M:%fZ', e.available_at / 1e6, 'unixepoch') END AS next_attempt_at,
       CASE e.state WHEN 2 THEN strftime('%Y-%m-%dT%H:%M:%fZ', e.available_at / 1e6, 'unixepoch') END AS locked_until,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.completed_at / 1e6, 'unixepoch') AS processed_at,
       e.completed_by AS processed_by, e.ending, e.group_id, e.collapse_key, e.correlation_id, e.id
  FROM postroom_entry e
 WHERE e.box >= 'inbox:' AND e.box < 'inbox;';

CREATE VIEW postroom_outbox AS
SELECT e.id, substr(e.box, 8) AS outbox_name, e.message_id, e.topic, e.payload, e.correlation_id,
       CASE e.state WHEN 1 THEN 'Ready' WHEN 2 THEN 'InProgress' WHEN 3 THEN 'Done' WHEN 4 THEN 'Failed' ELSE 'Seen' END
           AS status,
       e.state = 3 AS is_processed, e.attempt AS retry_count, e.deliveries, e.last_error, e.owner AS owner_token,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.first_seen / 1e6, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', e.due / 1e6, 'unixepoch') AS due_time_utc,
       CASE e.state WHEN 1 THEN strftime('%Y-%m-%dT%H:%M:%fZ', e.available_at / 1e6, 'unixepoch') END AS next_attempt_at,
       CASE e.state WHEN 2 THEN strftime('%Y-%m-%dT%H:%M:%fZ', e.available_at / 1e6, 'unixepoch') END AS locked_until,
       CASE e.state WHEN 3 THEN strftime('%Y-%m-%dT%H:%M:%fZ', e.completed_at / 1e6, 'unixepoch') END AS processed_at,
       e.completed_by AS processed_by, e.ending, e.group_id, e.collapse_key
  FROM postroom_entry e
 WHERE e.box >= 'outbox:' AND e.box < 'outbox;';

CREATE VIEW postroom_outbox_join AS
SELECT j.id AS join_id, substr(j.box, 8) AS outbox_name, j.tenant_id, j.expected_steps,
       coalesce(j.completed_steps,
                (SELECT count(*) FROM postroom_step s WHERE s.join_id = j.id AND s.status = 1)) AS completed_steps,
       coalesce(j.failed_steps,
                (SELECT count(*) FROM postroom_step s WHERE s.join_id = j.id AND s.status = 2)) AS failed_steps,
       j.status, strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1e6, 'unixepoch') AS created_utc,
       strftime('%Y-%m-%dT%H:%M:%fZ', j.updated_at / 1e6, 'unixepoch') AS last_updated_utc, j.metadata
  FROM postroom_join j;

CREATE VIEW postroom_outbox_join_member AS
SELECT s.join_id, s.message_id AS outbox_message_id, s.status,
       strftime('%Y-%m-%dT%H:%M:%fZ', s.attached_at / 1e6, 'unixepoch') AS created_utc
  FROM postroom_step s;
