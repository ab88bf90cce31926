-- Who holds a key. Most message ids are used once and stand in `dedup` alone; the others also in `namesakes`.
local function namesake(message_id, flag, source, id)
  return prefixed(message_id) .. flag .. prefixed(source) .. (id or '')
end

-- `first` is what `dedup` says of the message id.
local function holder_given(first, source, message_id)
  if not first then return nil end
  if sub(first, 17) == source then return sub(first, 1, 16) end
  local found = beginning(NAMESAKES, namesake(message_id, 'h', source), 1)[1]
  return found and id_of(found)
end

local function holder(source, message_id)
  return holder_given(call('HGET', DEDUP, message_id), source, message_id)
end

local function hold_key(id, source, message_id)
  if call('HSETNX', DEDUP, message_id, id .. source) == 0 then
    call('ZADD', NAMESAKES, 0, namesake(message_id, 'h', source, id))
  end
end

-- The key is free again, if this message held it; its place in `dedup` goes to another source of the same message id.
local function drop_key(id, source, message_id)
  if call('HGET', DEDUP, message_id) ~= id .. source then
    return call('ZREM', NAMESAKES, namesake(message_id, 'h', source, id), namesake(message_id, 'r', source, id))
  end
  local heir = beginning(NAMESAKES, prefixed(message_id) .. 'h', 1)[1]
  if heir then
    call('ZREM', NAMESAKES, heir)
    call('HSET', DEDUP, message_id, id_of(heir) .. sub(heir, #prefixed(message_id) + 6, -17))
  else
    call('HDEL', DEDUP, message_id)
  end
end

-- Who holds the key now: nobody, once the window of the earlier message has passed. That one is still found by its name.
local function known(source, message_id)
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
