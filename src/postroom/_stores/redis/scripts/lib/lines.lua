-- The lines of FIFO groups: who may be claimed. As in _kernel/line.py.
local function line_of(id)
  return call('HGET', LINE, id) or nil
end

local function join_line(id, group)
  call('HSET', LINE, id, group)
  call('ZADD', LINES, 0, prefixed(group) .. id)
end

-- The members of a line from its front: id, progress (to read), and from when a waiting one may be claimed.
local function members(group)
  local prefix = prefixed(group)
  local from, size, at = '[' .. prefix, 8, 0
  local ids, records, times = {}, {}, {}
  return function()
    at = at + 1
    if at > #ids then
      if ids[1] then
        if #ids < size then return nil end -- that was the end
        from, size = '(' .. prefix .. ids[#ids], math.min(size * 4, 1000)
      end
      ids = call('ZRANGEBYLEX', LINES, from, '(' .. prefix .. '\255', 'LIMIT', 0, size)
      if #ids == 0 then return nil end
      for index, member in ipairs(ids) do ids[index] = id_of(member) end
      records, times, at = call('HMGET', STATES, unpack(ids)), call('ZMSCORE', PENDING, unpack(ids)), 1
    end
    return ids[at], view(records[at]), tonumber(times[at] or nil)
  end
end

-- Whether its due time, if it has one ahead, has come.
local function is_in_line(progress, time)
  return not (progress[FENCE] == EARLY and time and time > now)
end

local function first_in_line(group)
  for id, progress, time in members(group) do
    if is_in_line(progress, time) then return id, progress, time end
  end
end

-- The same for many lines: a look at the first member of each mostly tells. Answers id, progress and time by group.
local function first_in_lines(groups)
  local found, asked, firsts = {}, {}, {}
  for _, group in ipairs(groups) do
    local first = beginning(LINES, prefixed(group), 1)[1]
    if first then asked[#asked + 1], firsts[#firsts + 1] = group, id_of(first) end
  end
  local records, times = fetch('HMGET', STATES, firsts), fetch('ZMSCORE', PENDING, firsts)
  for index, group in ipairs(asked) do
    local progress, time = view(records[index]), tonumber(times[index] or nil)
    if is_in_line(progress, time) then
      found[group] = {firsts[index], progress, time}
    else
      local id, its_progress, its_time = first_in_line(group)
      if id then found[group] = {id, its_progress, its_time} end
    end
  end
  return found
end

local function offer(id, time)
  call('ZADD', PENDING, time, id)
  if time <= now then claimable = true end
end

-- Offer the first in line, if it waits only for its turn.
local function promote(group)
  local id, progress, time = first_in_line(group)
  if id and progress[STATE] == 'w' and not time then offer(id, now) end
end

local function promote_all(groups)
  local scores = {}
  for _, first in pairs(first_in_lines(groups)) do
    local id, progress, time = unpack(first)
    if progress[STATE] == 'w' and not time then scores[#scores + 1], scores[#scores + 2] = now_text, id end
  end
  if #scores > 0 then
    write('ZADD', PENDING, scores)
    claimable = true
  end
end

-- The claimed members of a group, which hold it; those behind one of them, if it is given.
local function holders(group, after)
  local prefix = prefixed(group)
  local found = call('ZRANGEBYLEX', LOCKS, (after and '(' or '[') .. prefix .. (after or ''), '(' .. prefix .. '\255')
  for index, member in ipairs(found) do found[index] = id_of(member) end
  return found
end

local function unlock(group, id)
  call('ZREM', LOCKS, prefixed(group) .. id)
end

-- Claimed or waiting → waiting. From when, is said by whoever calls; `nil` is when its turn comes.
local function put_back(entry, time)
  local progress = entry.progress
  local was_claimed = progress[STATE] == 'c'
  progress[STATE], progress[OWNER], progress[FENCE] = 'w', '', math.max(progress[FENCE], 0)
  if was_claimed then
    call('ZREM', CAPTURED, entry.id)
    if progress[EXPIRES] ~= 0 then call('ZADD', EXPIRING, progress[EXPIRES], entry.id) end
  end
  if time then offer(entry.id, time) else call('ZREM', PENDING, entry.id) end
  save(entry)
end

-- The first outcome that is not success ends a group's batch: what stands behind is given back uncounted.
local function end_batch(id, group)
  for _, other in ipairs(holders(group, id)) do
    unlock(group, other)
    put_back(load(other), nil)
  end
end
