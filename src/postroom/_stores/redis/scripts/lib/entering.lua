-- How messages come in: ids, new entries, and the step from seen to waiting.
local sequence, limit = unpack(call('HMGET', META, 'sequence', 'limit'))
sequence, limit = tonumber(sequence or 0), tonumber(limit or 0)

-- Whether there are ids for so many; otherwise a block must be fetched first. A block that is older than ours is no use:
-- ids of a box only grow.
local function has_ids(count)
  if sequence + count <= limit then return true end
  local block = given.block
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

-- Ids come in order: the index needs an entry only for every PAGE of them.
local function save_sequence()
  if not first_new then return end
  call('HSET', META, 'sequence', sequence)
  for page = math.floor(first_new / PAGE), math.floor(sequence / PAGE) do
    local count = math.min(sequence, page * PAGE + PAGE - 1) - math.max(first_new, page * PAGE) + 1
    if call('HINCRBY', PAGES, page, count) == count then call('ZADD', INDEX, page, page) end
  end
end

-- Contents come one after the other in one text.
local function bodies_given()
  local bodies, from = {}, 1
  for index, length in ipairs(given.lengths) do
    bodies[index] = sub(ARGV[4], from, from + length - 1)
    from = from + length
  end
  return bodies
end

-- A new entry, seen only.
local function insert(body, expires)
  local content = content_of(stamp(now) .. body)
  local entry = setmetatable({id = next_id(), progress = untouched(), content = content}, Entry)
  local progress = entry.progress
  progress[STATE], progress[EXPIRES] = 's', expires or 0
  call('HSET', MESSAGES, entry.id, content.body)
  call('ZADD', SEEN, entry.id, entry.id)
  save(entry)
  hold_key(entry.id, content.source, content.message_id)
  return entry
end

-- Seen → waiting: the message takes its place in the queue.
local function enter(entry, expires, lifetime)
  local id, progress, content = entry.id, entry.progress, entry.content
  local group = policy.fifo and content.group
  progress[STATE] = 'w'
  progress[EXPIRES] = expires or (lifetime and now + lifetime) or 0
  if group and content.due and content.due > now then progress[FENCE] = EARLY end
  save(entry)
  call('ZREM', SEEN, id)
  if progress[EXPIRES] ~= 0 then call('ZADD', EXPIRING, progress[EXPIRES], id) end
  local first = group and first_in_line(group)
  if content.due and content.due > now then
    offer(id, content.due)
  elseif not (first and first < id) then
    offer(id, now)
  end
  if group then join_line(id, group) end
  if content.collapse then add_to_collapse(content.collapse, id) end
end
