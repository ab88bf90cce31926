-- A message: its progress (a record in `states`) and its content (in `messages`).
local STATE, FENCE, ATTEMPT, DELIVERIES, REVISION, LAST_SEEN = 1, 2, 3, 4, 5, 6
-- The fence of whoever stands in a line only from a due time on.
local EARLY = -1
local EXPIRES, OWNER, STALE, COMPLETED, ENDING, ERROR, LOST = 7, 8, 9, 10, 11, 12, 13

local function untouched()
  return {'w', 0, 0, 0, 0, 0, 0, '', 0, 0, '', false, 0}
end
local UNTOUCHED = untouched()

-- Of many messages few records differ: each is unpacked once. For reading only.
local views = {}
local function view(record)
  if not record then return UNTOUCHED end
  local seen = views[record]
  if not seen then
    seen = unpack_message(record)
    views[record] = seen
  end
  return seen
end

-- For writing: `entry.progress`, then `save`. `entry.content` is read when it is asked for.
local content_of
local Entry = {__index = function(entry, name)
  if name == 'content' then
    local content = content_of(call('HGET', MESSAGES, entry.id))
    rawset(entry, 'content', content)
    return content
  end
end}

local function load(id)
  local record = call('HGET', STATES, id)
  return setmetatable({id = id, progress = record and unpack_message(record) or untouched()}, Entry)
end

local function save(entry)
  call('HSET', STATES, entry.id, pack(entry.progress))
end

local function stamp(time)
  return struct.pack('>BI8', 0xcf, time)
end

function content_of(body)
  local rest, first_seen, topic, source, message_id, correlation, form, due, hash, algorithm, group, collapse, received =
    cmsgpack.unpack_limit(body, 12)
  return {
    body = body, rest = rest, first_seen = first_seen, topic = topic, source = source, message_id = message_id,
    correlation = correlation, form = form, due = due, hash = hash, algorithm = algorithm, group = group,
    collapse = collapse, received = received,
  }
end

-- Headers and payload as they are packed.
local function rest_of(content)
  return sub(content.body, content.rest + 1)
end

local function payload_of(content)
  local after = cmsgpack.unpack_one(content.body, content.rest)
  return sub(content.body, after + 1)
end

-- Whether a known key had other content: another topic, or another hash of the same algorithm. A key that was only
-- recorded or marked has no topic.
local function contradicts(new, old)
  if new.topic ~= '' and old.topic ~= '' and new.topic ~= old.topic then return true end
  return new.hash and old.hash and new.algorithm == old.algorithm and new.hash ~= old.hash or false
end

local function topic_of(body)
  local _, _, topic = cmsgpack.unpack_limit(body, 2)
  return topic
end

-- Content again, from its parts.
local function rebuild(id, content, rest)
  local body = stamp(content.first_seen) .. pack(content.topic) .. pack(content.source) .. pack(content.message_id)
    .. pack(content.correlation) .. pack(content.form) .. pack(content.due) .. pack(content.hash)
    .. pack(content.algorithm) .. pack(content.group) .. pack(content.collapse) .. pack(content.received) .. rest
  call('HSET', MESSAGES, id, body)
  return content_of(body)
end

local NO_HEADERS_NO_PAYLOAD = pack(nil) .. pack('')

local function blank(entry)
  local content = entry.content
  content.form = 'text'
  entry.content = rebuild(entry.id, content, NO_HEADERS_NO_PAYLOAD)
end

-- How many ids share an entry of the index.
local PAGE = 1024

-- Leases in a row that were lost, with the one that has passed, of a message that is about to be claimed.
local function lost_leases(progress)
  return progress[STATE] == 'c' and progress[LOST] + 1 or progress[LOST]
end

-- Why a message must not be claimed again, if there is a reason.
local function cause_of_death(progress)
  if progress[EXPIRES] ~= 0 and progress[EXPIRES] <= now then return 'expired' end
  if policy.max_deliveries and progress[DELIVERIES] >= policy.max_deliveries then return 'delivery limit' end
  if policy.max_lost_leases and lost_leases(progress) >= policy.max_lost_leases then return 'delivery limit' end
end

-- Whether a message may be what kills its workers: a claim takes at most one such message.
local function is_suspect(progress)
  local lost = lost_leases(progress)
  if lost == 0 then return false end
  return lost >= policy.suspect_from
    or (policy.max_deliveries ~= nil and progress[DELIVERIES] + 1 >= policy.max_deliveries)
end
