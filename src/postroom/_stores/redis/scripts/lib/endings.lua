-- How messages leave the queue, and how the dead come back.
local function leave_line(entry)
  local group = line_of(entry.id)
  if group then
    call('HDEL', LINE, entry.id)
    call('ZREM', LINES, prefixed(group) .. entry.id)
    promote(group)
  end
end

-- Out of the queue: nobody holds it, nobody may claim it, and its group goes on.
local function leave(entry, was, stay_in_line)
  local id = entry.id
  if was == 'w' then
    call('ZREM', PENDING, id)
    if entry.progress[EXPIRES] ~= 0 then call('ZREM', EXPIRING, id) end
  elseif was == 'c' then
    call('ZREM', CAPTURED, id)
    local group = line_of(id)
    if group then unlock(group, id) end
  elseif was == 's' then
    call('ZREM', SEEN, id)
  elseif was == 'x' then
    call('ZREM', DLQ, id)
  end
  if not stay_in_line then leave_line(entry) end
end

local function finish(entry, ending, by, blanks)
  local progress = entry.progress
  local was = progress[STATE]
  progress[STATE], progress[ENDING], progress[COMPLETED], progress[OWNER] = 'd', ending, now, by
  progress[LOST] = 0
  save(entry)
  call('ZADD', DONE, now, entry.id)
  if blanks then blank(entry) end
  leave(entry, was)
end

local function bury(entry, reason)
  local progress = entry.progress
  local was = progress[STATE]
  progress[ERROR] = reason
  if policy.discard then return finish(entry, 'discarded', '', true) end
  progress[STATE], progress[COMPLETED], progress[OWNER] = 'x', now, ''
  progress[FENCE] = math.max(progress[FENCE], 0)
  save(entry)
  call('ZADD', DLQ, entry.id, entry.id)
  leave(entry, was, policy.block)
end

-- `collapse` has the unfinished messages of a key, and maybe some that have finished since: they are told by their state.
local function add_to_collapse(key, id)
  local ids = call('HGET', COLLAPSE, key) or ''
  for other in each_id(ids) do
    if other == id then return end
  end
  call('HSET', COLLAPSE, key, ids .. id)
end

-- Dead → waiting, in its old place. The fence goes on: a claim from its former life proves nothing.
local function revive(entry)
  local progress, content = entry.progress, entry.content
  progress[STATE], progress[COMPLETED], progress[EXPIRES] = 'w', 0, 0
  progress[ATTEMPT], progress[DELIVERIES], progress[LOST] = 0, 0, 0
  progress[FENCE] = math.max(progress[FENCE], 1)
  save(entry)
  call('ZREM', DLQ, entry.id)
  if content.collapse then add_to_collapse(content.collapse, entry.id) end
  if policy.fifo and content.group then
    local group = line_of(entry.id)
    if not group then
      group = content.group
      join_line(entry.id, group)
    end
    promote(group)
  else
    offer(entry.id, now)
  end
end
