-- FIFO groups. The members of a group stand in line in id order; only the front of the line can be claimed. The rules are
-- those of _kernel/line.py.
--
-- The first in line is always in `pending`, unless it is claimed or dead. A member behind it has no time in `pending`; it
-- gets one when the front moves on (`promote`). A delayed member (its due time lies ahead) is in `pending` with that time,
-- and the members behind it may overtake it.
--
-- `locks` has the claimed members. While one of their leases runs, no other worker claims from the group.

-- Returns the group in whose line the message stands, or nil.
local function line_of(id)
  return call('HGET', LINE, id) or nil
end

local function join_line(id, group)
  call('HSET', LINE, id, group)
  call('ZADD', LINES, 0, length_prefixed(group) .. id)
end

-- Iterates over the members of a line from its front: id, progress (to read only), and the time in `pending` or nil. Reads
-- a few members first, because mostly the first one is enough.
local function members(group)
  local prefix = length_prefixed(group)
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
    return ids[at], read_progress(records[at]), tonumber(times[at] or nil)
  end
end

-- True unless the member is delayed and its due time still lies ahead.
local function is_in_line(progress, time)
  return not (progress[DELAYED] and time and time > now)
end

-- Returns id, progress and time of the first in line, or nil.
local function first_in_line(group)
  for id, progress, time in members(group) do
    if is_in_line(progress, time) then return id, progress, time end
  end
end

-- Returns {id, progress, time} of the first in line, by group. Reads the first members of all groups together; only a
-- group whose first member is delayed is read further.
local function first_in_lines(groups)
  local found, asked, firsts = {}, {}, {}
  for _, group in ipairs(groups) do
    local first = members_with_prefix(LINES, length_prefixed(group), 1)[1]
    if first then asked[#asked + 1], firsts[#firsts + 1] = group, id_of(first) end
  end
  local records, times = fetch('HMGET', STATES, firsts), fetch('ZMSCORE', PENDING, firsts)
  for index, group in ipairs(asked) do
    local progress, time = read_progress(records[index]), tonumber(times[index] or nil)
    if is_in_line(progress, time) then
      found[group] = {firsts[index], progress, time}
    else
      local id, its_progress, its_time = first_in_line(group)
      if id then found[group] = {id, its_progress, its_time} end
    end
  end
  return found
end

-- Makes a waiting message claimable from this time on.
local function offer(id, time)
  call('ZADD', PENDING, time, id)
  if time <= now then has_claimable = true end
end

-- Offers the first in line if it has no time yet.
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
    has_claimable = true
  end
end

-- Returns the ids of the claimed members of a group; with `after`, of those behind this id.
local function claimed_members(group, after)
  local prefix = length_prefixed(group)
  local found = call('ZRANGEBYLEX', LOCKS, (after and '(' or '[') .. prefix .. (after or ''), '(' .. prefix .. '\255')
  for index, member in ipairs(found) do found[index] = id_of(member) end
  return found
end

local function unlock(group, id)
  call('ZREM', LOCKS, length_prefixed(group) .. id)
end

-- Moves a claimed or waiting message to waiting, claimable from `time` on. nil: when it becomes the first in line.
local function put_back(entry, time)
  local progress = entry.progress
  local was_claimed = progress[STATE] == 'c'
  progress[STATE], progress[OWNER], progress[DELAYED] = 'w', '', false
  if was_claimed then
    call('ZREM', CAPTURED, entry.id)
    if progress[EXPIRES] ~= 0 then call('ZADD', EXPIRING, progress[EXPIRES], entry.id) end
  end
  if time then offer(entry.id, time) else call('ZREM', PENDING, entry.id) end
  save(entry)
end

-- Ends the batch of a group behind this message: puts the claimed members behind it back, uncounted. The first outcome that
-- is not a success does this.
local function end_batch(id, group)
  for _, other in ipairs(claimed_members(group, id)) do
    unlock(group, other)
    put_back(load(other), nil)
  end
end
