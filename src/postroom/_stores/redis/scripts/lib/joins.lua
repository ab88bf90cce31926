-- Joins (docs/decisions/0015): their records, and the counts of their steps.
--
-- A join is named by its id, 32 hexadecimal digits. A script is atomic, so it counts: the record of a join has the numbers of its
-- steps that have completed and failed. They change with the states of the messages, also after the join has ended.

-- Returned instead of a result, before any write.
local NO_JOIN, JOIN_ENDED, JOIN_FULL = 'no join', 'join ended', 'join full'

-- True if the box has joins. Asked at most once per script, and only where something may concern a join.
local box_has_joins
local function has_joins()
  if box_has_joins == nil then box_has_joins = call('HLEN', JOINS) > 0 end
  return box_has_joins
end

-- Returns the record of a join, to be changed and saved, or nil.
local function load_join(join)
  local record = call('HGET', JOIN_STATES, join)
  return record and unpack_message(record) or nil
end

local function save_join(join, record)
  call('HSET', JOIN_STATES, join, pack(record))
end

-- True if the join has all its steps.
local function is_filled(record)
  if record.expected then return record.attached >= record.expected end
  return record.sealed
end

local function has_pending_steps(record)
  return record.completed + record.failed < record.attached
end

-- Lets the next claim look at the join, if all its steps have ended and its continuation waits.
local function wake(record)
  if record.wait and is_filled(record) and not has_pending_steps(record)
    and call('ZADD', WAITS, 'XX', 'CH', now_text, record.wait) == 1 then
    has_claimable = true
  end
end

-- -- steps -----------------------------------------------------------------------------------------------------------

-- A value of `memberships` has STEP_CHARS for each join of a message: the join (32); how the step has ended, if the state of
-- the message does not show it ('c' completed, 'f' failed, otherwise NO_OUTCOME); the time at which it was attached (16).
local STEP_CHARS, NO_OUTCOME = 49, '-'

-- Returns the status of a step by the state of its message.
local function step_status(message_state)
  return message_state == 'd' and 'completed' or message_state == 'x' and 'failed' or 'pending'
end

-- Returns where the step of this join begins in a value of `memberships`, or nil.
local function position_of_step(value, join)
  for at = 1, value and #value or 0, STEP_CHARS do
    if sub(value, at, at + 31) == join then return at end
  end
end

local function outcome_at(value, at)
  return sub(value, at + 32, at + 32)
end

local function with_outcome(value, at, outcome)
  return sub(value, 1, at + 31) .. outcome .. sub(value, at + 33)
end

-- Counts steps with another status. Pending ones are the rest of the attached ones.
local function count_steps(record, status, change)
  if status ~= 'pending' then record[status] = record[status] + change end
end

-- After messages have changed: those that are steps had the status `before`, and now have the status `after`. `outcome` is
-- given if the state of the message does not show this. A step that has an outcome keeps it.
local function move_steps(ids, before, after, outcome)
  if not has_joins() then return end
  local moved, joins, changed = {}, {}, {}
  for index, value in ipairs(fetch('HMGET', MEMBERSHIPS, ids)) do
    for at = 1, value and #value or 0, STEP_CHARS do
      if outcome_at(value, at) == NO_OUTCOME then
        local join = sub(value, at, at + 31)
        if not moved[join] then joins[#joins + 1] = join end
        moved[join] = (moved[join] or 0) + 1
        if outcome then
          value = with_outcome(value, at, outcome)
          call('HSET', MEMBERSHIPS, ids[index], value)
        end
      end
    end
  end
  if before == after then return end
  for index, packed in ipairs(fetch('HMGET', JOIN_STATES, joins)) do
    if packed then -- not of a join that is being purged
      local join, record = joins[index], unpack_message(packed)
      count_steps(record, before, -moved[join])
      count_steps(record, after, moved[join])
      changed[#changed + 1], changed[#changed + 2] = join, pack(record)
      wake(record)
    end
  end
  write('HSET', JOIN_STATES, changed)
end

-- Returns why so many more steps cannot be attached to a join, or nil.
local function refusal(record, more)
  if more > 0 and (record.status ~= 'pending' or record.sealed) then return JOIN_ENDED end
  if record.expected and record.attached + more > record.expected then return JOIN_FULL end
end

-- Makes messages steps of a join. Returns for each whether it was none before.
local function attach(join, record, ids)
  local memberships, records = fetch('HMGET', MEMBERSHIPS, ids), fetch('HMGET', STATES, ids)
  local is_new, added, values, members = {}, {}, {}, {}
  local step = join .. NO_OUTCOME .. format('%016.0f', now)
  for index, id in ipairs(ids) do
    is_new[index] = not added[id] and not position_of_step(memberships[index], join)
    if is_new[index] then
      added[id] = true
      values[#values + 1], values[#values + 2] = id, (memberships[index] or '') .. step
      members[#members + 1], members[#members + 2] = '0', join .. id
      record.attached = record.attached + 1
      count_steps(record, step_status(read_progress(records[index])[STATE]), 1)
    end
  end
  if #values == 0 then return is_new end
  write('HSET', MEMBERSHIPS, values)
  write('ZADD', STEPS, members)
  if is_filled(record) then record.updated_at = now end
  save_join(join, record)
  wake(record)
  return is_new
end

-- Puts a new message in the place of one that it supersedes, in pending joins of which it is no step. `joining`: the join of
-- which it becomes one.
local function replace_step(old, new, joining)
  local value = has_joins() and call('HGET', MEMBERSHIPS, old)
  if not value then return end
  local moved, kept = call('HGET', MEMBERSHIPS, new) or '', ''
  for at = 1, #value, STEP_CHARS do
    local join, step = sub(value, at, at + 31), sub(value, at, at + STEP_CHARS - 1)
    local record = load_join(join)
    if record and record.status == 'pending' and join ~= joining and not position_of_step(moved, join) then
      moved = moved .. step
      call('ZREM', STEPS, join .. old)
      call('ZADD', STEPS, 0, join .. new)
    else
      kept = kept .. step
    end
  end
  if moved ~= '' then call('HSET', MEMBERSHIPS, new, moved) end
  if kept == '' then call('HDEL', MEMBERSHIPS, old) else call('HSET', MEMBERSHIPS, old, kept) end
end

-- -- continuations ---------------------------------------------------------------------------------------------------

-- True if the message waits for the end of a join, or is dead and will wait for it again after a replay.
local function is_continuation(id)
  return has_joins() and call('HEXISTS', CONTINUATIONS, id) == 1
end
