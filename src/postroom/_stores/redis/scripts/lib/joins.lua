-- Joins (docs/decisions/0015): their records, and the counts of their steps.
--
-- A join is named by its id, 32 hexadecimal digits. A script is atomic, so it counts: the record of a join has the numbers of
-- its steps that have completed and failed. They change with the states of the messages, also after the join has ended.

-- Returned instead of a result, before any write.
local NO_JOIN, JOIN_ENDED, JOIN_FULL, WAITS_FOR_ITSELF = 'no join', 'join ended', 'join full', 'waits for itself'

-- A value of `memberships` has STEP_CHARS for each join of a message: the join (32); how the step has ended, if the state of
-- the message does not show it ('c' completed, 'f' failed, otherwise NO_OUTCOME); the time at which it was attached (16).
local STEP_CHARS, NO_OUTCOME = 49, '-'

-- The functions for joins, or false if the box has none. A script creates its functions on every call, which takes longer than
-- this question. An inbox has no joins, and its scripts get no keys of joins.
local joins = JOINS and call('HLEN', JOINS) > 0 and {}

if joins then
  -- Returns the record of a join, to be changed and saved, or nil.
  function joins.load(join)
    local record = call('HGET', JOIN_STATES, join)
    return record and unpack_message(record) or nil
  end

  function joins.save(join, record)
    call('HSET', JOIN_STATES, join, pack(record))
  end

  -- True if the join has all its steps.
  local function is_filled(record)
    if record.expected then return record.attached >= record.expected end
    return record.sealed
  end

  function joins.has_pending_steps(record)
    return record.completed + record.failed < record.attached
  end

  -- Returns the status of a join by its steps and its deadline. The same rule as `status_of` in _kernel/joins.py.
  function joins.status_by_steps(record)
    if is_filled(record) and not joins.has_pending_steps(record) then
      return record.failed > 0 and record.fails and 'failed' or 'completed'
    end
    return record.deadline and record.deadline <= now and 'failed' or 'pending'
  end

  -- Lets the next claim look at the join, if all its steps have ended and its continuation waits.
  function joins.wake(record)
    if record.wait and is_filled(record) and not joins.has_pending_steps(record)
      and call('ZADD', WAITS, 'XX', 'CH', now_text, record.wait) == 1 then
      has_claimable = true
    end
  end

  -- Ends a join. Its counts stay as they are now.
  function joins.finish(join, record, status)
    record.status, record.updated_at = status, now
    record.ended_completed, record.ended_failed = record.completed, record.failed
    joins.save(join, record)
    call('ZADD', ENDED_JOINS, now_text, join)
  end

  -- -- steps ---------------------------------------------------------------------------------------------------------

  -- Returns the status of a step by the state of its message.
  function joins.step_status(message_state)
    return message_state == 'd' and 'completed' or message_state == 'x' and 'failed' or 'pending'
  end

  -- Returns where the step of this join begins in a value of `memberships`, or nil.
  function joins.position_of_step(value, join)
    for at = 1, value and #value or 0, STEP_CHARS do
      if sub(value, at, at + 31) == join then return at end
    end
  end

  function joins.outcome_at(value, at)
    return sub(value, at + 32, at + 32)
  end

  function joins.with_outcome(value, at, outcome)
    return sub(value, 1, at + 31) .. outcome .. sub(value, at + 33)
  end

  -- Counts steps with another status. Pending ones are the rest of the attached ones.
  function joins.count_steps(record, status, change)
    if status ~= 'pending' then record[status] = record[status] + change end
  end

  -- After messages have changed: those that are steps had the status `before`, and now have the status `after`. `outcome` is
  -- given if the state of the message does not show this. A step that has an outcome keeps it.
  function joins.move_steps(ids, before, after, outcome)
    local moved, found, changed = {}, {}, {}
    for index, value in ipairs(fetch('HMGET', MEMBERSHIPS, ids)) do
      for at = 1, value and #value or 0, STEP_CHARS do
        if joins.outcome_at(value, at) == NO_OUTCOME then
          local join = sub(value, at, at + 31)
          if not moved[join] then found[#found + 1] = join end
          moved[join] = (moved[join] or 0) + 1
          if outcome then
            value = joins.with_outcome(value, at, outcome)
            call('HSET', MEMBERSHIPS, ids[index], value)
          end
        end
      end
    end
    if before == after then return end
    for index, packed in ipairs(fetch('HMGET', JOIN_STATES, found)) do
      if packed then -- not of a join that is being purged
        local join, record = found[index], unpack_message(packed)
        joins.count_steps(record, before, -moved[join])
        joins.count_steps(record, after, moved[join])
        changed[#changed + 1], changed[#changed + 2] = join, pack(record)
        joins.wake(record)
      end
    end
    write('HSET', JOIN_STATES, changed)
  end

  -- True if the join would wait for itself: one of these messages is its continuation, or the continuation of a join that
  -- waits for it. `ids` has the messages as fields.
  local function closes_circle(record, ids)
    local waiting, seen = {record}, {}
    while next(ids) and #waiting > 0 do
      local wait = table.remove(waiting).wait
      if wait and not seen[wait] then
        if ids[wait] then return true end
        seen[wait] = true
        local value = call('HGET', MEMBERSHIPS, wait) or ''
        for at = 1, #value, STEP_CHARS do
          local above = joins.load(sub(value, at, at + 31))
          if above and above.status == 'pending' then waiting[#waiting + 1] = above end
        end
      end
    end
    return false
  end

  -- Returns why messages cannot become steps of a join, or nil. `ids` has the known messages as fields; `more` of all
  -- messages are no steps yet.
  function joins.refusal(record, ids, more)
    if more > 0 and (record.status ~= 'pending' or record.sealed) then return JOIN_ENDED end
    if record.expected and record.attached + more > record.expected then return JOIN_FULL end
    if closes_circle(record, ids) then return WAITS_FOR_ITSELF end
  end

  -- Makes messages steps of a join. Returns for each whether it was none before.
  function joins.attach(join, record, ids)
    local memberships, records = fetch('HMGET', MEMBERSHIPS, ids), fetch('HMGET', STATES, ids)
    local is_new, added, values, members = {}, {}, {}, {}
    local step = join .. NO_OUTCOME .. format('%016.0f', now)
    for index, id in ipairs(ids) do
      is_new[index] = not added[id] and not joins.position_of_step(memberships[index], join)
      if is_new[index] then
        added[id] = true
        values[#values + 1], values[#values + 2] = id, (memberships[index] or '') .. step
        members[#members + 1], members[#members + 2] = '0', join .. id
        record.attached = record.attached + 1
        joins.count_steps(record, joins.step_status(read_progress(records[index])[STATE]), 1)
      end
    end
    if #values == 0 then return is_new end
    write('HSET', MEMBERSHIPS, values)
    write('ZADD', STEPS, members)
    if is_filled(record) then record.updated_at = now end
    joins.save(join, record)
    joins.wake(record)
    return is_new
  end

  -- Puts a new message in the place of one that it supersedes, in pending joins of which it is no step. `joining`: the join
  -- of which it becomes one.
  function joins.replace_step(old, new, joining)
    local value = call('HGET', MEMBERSHIPS, old)
    if not value then return end
    local moved, kept = call('HGET', MEMBERSHIPS, new) or '', ''
    for at = 1, #value, STEP_CHARS do
      local join, step = sub(value, at, at + 31), sub(value, at, at + STEP_CHARS - 1)
      local record = joins.load(join)
      if record and record.status == 'pending' and join ~= joining and not joins.position_of_step(moved, join) then
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

  -- -- messages that are steps or continuations ------------------------------------------------------------------------

  -- True if the message waits for the end of a join, or is dead and will wait for it again after a replay.
  function joins.is_continuation(id)
    return call('HEXISTS', CONTINUATIONS, id) == 1
  end

  -- True if the message is the continuation of a join that may have ended. Its message id is that of the join.
  function joins.is_of_join(entry)
    local record = joins.load((string.gsub(entry.content.message_id, '-', '')))
    return record and record.wait == entry.id
  end

  -- After messages have ended for good: if they are continuations, their joins may be purged, if these have ended too.
  local function forget_continuations(ids)
    for index, packed in ipairs(fetch('HMGET', CONTINUATIONS, ids)) do
      if packed then
        local join = unpack_message(packed).join
        local record = joins.load(join)
        call('HDEL', CONTINUATIONS, ids[index])
        if record and record.status ~= 'pending' then call('ZADD', ENDED_JOINS, record.updated_at, join) end
      end
    end
  end

  -- After a message has become done.
  function joins.message_finished(id, old_state, ending)
    local has_failed = ending == 'discarded' or ending == 'cancelled'
    call('ZREM', WAITS, id)
    forget_continuations({id})
    joins.move_steps({id}, joins.step_status(old_state), has_failed and 'failed' or 'completed', has_failed and 'f')
  end

  -- After a message has become dead. If it is a continuation, it stays one: it may be replayed.
  function joins.message_buried(id, old_state)
    call('ZREM', WAITS, id)
    joins.move_steps({id}, joins.step_status(old_state), 'failed')
  end

  -- After a dead message was replayed. Returns true if it is a continuation: the next claim looks at its join again.
  function joins.message_revived(id)
    joins.move_steps({id}, 'failed', 'pending')
    if not joins.is_continuation(id) then return false end
    call('ZADD', WAITS, now_text, id)
    has_claimable = true
    return true
  end

  -- Before dead or seen messages are deleted. A step without a message is completed, unless its outcome is written.
  function joins.messages_deleted(ids, were_dead)
    if were_dead then joins.move_steps(ids, 'failed', 'failed', 'f')
    else joins.move_steps(ids, 'pending', 'completed') end
    forget_continuations(ids)
  end
end
