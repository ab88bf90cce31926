-- Transitions to done and dead, and from dead back to waiting.

local function leave_line(entry)
  local group = line_of(entry.id)
  if group then
    call('HDEL', LINE, entry.id)
    call('ZREM', LINES, length_prefixed(group) .. entry.id)
    promote(group)
  end
end

-- Removes a message from the sets of its old state. The next member of its group becomes the first in line, unless
-- `stays_in_line`.
local function leave(entry, old_state, stays_in_line)
  local id = entry.id
  if old_state == 'w' then
    call('ZREM', PENDING, id)
    if entry.progress[EXPIRES] ~= 0 then call('ZREM', EXPIRING, id) end
  elseif old_state == 'c' then
    call('ZREM', CAPTURED, id)
    local group = line_of(id)
    if group then unlock(group, id) end
  elseif old_state == 's' then
    call('ZREM', SEEN, id)
  elseif old_state == 'x' then
    call('ZREM', DLQ, id)
  end
  if not stays_in_line then leave_line(entry) end
end

-- Makes a message done. `owner`: the worker that completed it, or ''. `blanks`: deletes headers and payload.
local function finish(entry, ending, owner, blanks)
  local progress = entry.progress
  local old_state = progress[STATE]
  progress[STATE], progress[ENDING], progress[COMPLETED_AT], progress[OWNER] = 'd', ending, now, owner
  progress[LOST_LEASES], progress[DELAYED] = 0, false
  save(entry)
  call('ZADD', DONE, now, entry.id)
  if blanks then blank(entry) end
  leave(entry, old_state)
  if joins then joins.message_finished(entry.id, old_state, ending) end
end

-- Makes a message dead, or done where the box discards dead letters. With `on_dead="block"` it stays in line.
local function bury(entry, reason)
  local progress = entry.progress
  local old_state = progress[STATE]
  progress[LAST_ERROR] = reason
  if policy.discard then return finish(entry, 'discarded', '', true) end
  progress[STATE], progress[COMPLETED_AT], progress[OWNER], progress[DELAYED] = 'x', now, '', false
  save(entry)
  call('ZADD', DLQ, entry.id, entry.id)
  leave(entry, old_state, policy.block)
  if joins then joins.message_buried(entry.id, old_state) end
end

-- Adds a message to its collapse key. `collapse` has the unfinished messages of a key, and may have some that are finished
-- since: a reader checks their state.
local function add_to_collapse(key, id)
  local ids = call('HGET', COLLAPSE, key) or ''
  for other in each_id(ids) do
    if other == id then return end
  end
  call('HSET', COLLAPSE, key, ids .. id)
end

-- Makes a dead message wait again, at its old position in line. Its fence stays, so that an earlier claim is no proof; it is
-- at least 1, because the message counts as tried.
local function revive(entry)
  local progress, content = entry.progress, entry.content
  progress[STATE], progress[COMPLETED_AT], progress[EXPIRES] = 'w', 0, 0
  progress[ATTEMPT], progress[DELIVERIES], progress[LOST_LEASES] = 0, 0, 0
  progress[FENCE] = math.max(progress[FENCE], 1)
  save(entry)
  call('ZREM', DLQ, entry.id)
  if joins and joins.message_revived(entry.id) then return end
  if content.collapse_key then add_to_collapse(content.collapse_key, entry.id) end
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
