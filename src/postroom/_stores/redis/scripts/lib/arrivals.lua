-- Arrivals: ids, new entries, and the transition from seen to waiting.
--
-- Arguments: `message_ids` and `sources`, one per draft; `lengths` of the contents in ARGV[4]; `block`, if the client has
-- fetched one: {the last id before it, its size}.
local sequence, limit = unpack(call('HMGET', META, 'sequence', 'limit'))
sequence, limit = tonumber(sequence or 0), tonumber(limit or 0)

-- True if the box has ids for so many messages. Otherwise the script returns NEEDS_IDS before any write, and the client calls
-- it again with a block of ids. A block below the current one is not used: the ids of a box only grow.
local NEEDS_IDS = 'ids'
local function has_ids(count)
  if sequence + count <= limit then return true end
  local block = args.block
  if not block or block[1] < limit or block[2] < count then return false end
  sequence, limit = block[1], block[1] + block[2]
  call('HSET', META, 'sequence', sequence, 'limit', limit)
  return true
end

local first_new
local function next_id()
  sequence = sequence + 1
  first_new = first_new or sequence
  return format('%016d', sequence)
end

-- Writes the sequence and the index: one member per PAGE ids, because ids grow.
local function save_sequence()
  if not first_new then return end
  call('HSET', META, 'sequence', sequence)
  for page = math.floor(first_new / PAGE), math.floor(sequence / PAGE) do
    local count = math.min(sequence, page * PAGE + PAGE - 1) - math.max(first_new, page * PAGE) + 1
    if call('HINCRBY', PAGES, page, count) == count then call('ZADD', INDEX, page, page) end
  end
end

-- Returns the contents in ARGV[4], without `first_seen`.
local function split_bodies()
  local bodies, from = {}, 1
  for index, length in ipairs(args.lengths) do
    bodies[index] = sub(ARGV[4], from, from + length - 1)
    from = from + length
  end
  return bodies
end

-- Inserts a message in the state seen, and returns its entry.
local function insert_seen(body, expires)
  local content = content_of(pack_time(now) .. body)
  local entry = setmetatable({id = next_id(), progress = untouched(), content = content}, Entry)
  local progress = entry.progress
  progress[STATE], progress[EXPIRES] = 's', expires or 0
  call('HSET', MESSAGES, entry.id, content.body)
  call('ZADD', SEEN, entry.id, entry.id)
  save(entry)
  hold_key(entry.id, content.source, content.message_id)
  return entry
end

-- Moves a seen message to waiting.
local function enter_queue(entry, expires, lifetime)
  local id, progress, content = entry.id, entry.progress, entry.content
  local group = policy.fifo and content.group
  local is_ahead = content.due and content.due > now
  progress[STATE] = 'w'
  progress[EXPIRES] = expires or (lifetime and now + lifetime) or 0
  progress[DELAYED] = group and is_ahead and true or false
  save(entry)
  call('ZREM', SEEN, id)
  if progress[EXPIRES] ~= 0 then call('ZADD', EXPIRING, progress[EXPIRES], id) end
  local first = group and first_in_line(group)
  if is_ahead then
    offer(id, content.due)
  elseif not (first and first < id) then
    offer(id, now)
  end
  if group then join_line(id, group) end
  if content.collapse_key then add_to_collapse(content.collapse_key, id) end
end
