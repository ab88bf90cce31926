-- Deduplication keys, which are pairs of source and message id. Each key has at most one holder: the message with this key
-- that deduplicates.
--
-- Most message ids are used once: `dedup` has their holder. Further holders of the same message id, of other sources, are in
-- `namesakes` with the flag 'h'. A message whose key was taken over is there with the flag 'r': `find` still finds it.
local function namesake(message_id, flag, source, id)
  return length_prefixed(message_id) .. flag .. length_prefixed(source) .. (id or '')
end

-- Returns the id of the holder, or nil.
local function holder(source, message_id)
  local first = call('HGET', DEDUP, message_id)
  if not first then return nil end
  if sub(first, 17) == source then return sub(first, 1, 16) end
  local found = members_with_prefix(NAMESAKES, namesake(message_id, 'h', source), 1)[1]
  return found and id_of(found)
end

local function hold_key(id, source, message_id)
  if call('HSETNX', DEDUP, message_id, id .. source) == 0 then
    call('ZADD', NAMESAKES, 0, namesake(message_id, 'h', source, id))
  end
end

-- Frees the key if this message holds it. Its field in `dedup` goes to the holder of the same message id of another source.
local function drop_key(id, source, message_id)
  if call('HGET', DEDUP, message_id) ~= id .. source then
    return call('ZREM', NAMESAKES, namesake(message_id, 'h', source, id), namesake(message_id, 'r', source, id))
  end
  local heir = members_with_prefix(NAMESAKES, length_prefixed(message_id) .. 'h', 1)[1]
  if heir then
    call('ZREM', NAMESAKES, heir)
    call('HSET', DEDUP, message_id, id_of(heir) .. sub(heir, #length_prefixed(message_id) + 6, -17))
  else
    call('HDEL', DEDUP, message_id)
  end
end

-- Returns the entry that holds the key, or nil. A holder whose deduplication window has passed loses the key here.
local function find_known(source, message_id)
  local id = holder(source, message_id)
  if not id then return nil end
  local entry = load(id)
  if policy.window and entry.content.first_seen + policy.window <= now then
    drop_key(id, source, message_id)
    call('ZADD', NAMESAKES, 0, namesake(message_id, 'r', source, id))
    return nil
  end
  return entry
end
