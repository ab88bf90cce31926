-- Deletes joins. Only boxes with joins have this function: see lib/joins.lua.
if joins then
  -- Deletes at most `count` steps of a join, and returns how many.
  local function delete_steps(join, count)
    local members, ids = members_with_prefix(STEPS, join, count), {}
    for index, member in ipairs(members) do ids[index] = id_of(member) end
    for index, value in ipairs(fetch('HMGET', MEMBERSHIPS, ids)) do
      local at = joins.position_of_step(value, join)
      local rest = sub(value, 1, at - 1) .. sub(value, at + STEP_CHARS)
      if rest == '' then call('HDEL', MEMBERSHIPS, ids[index]) else call('HSET', MEMBERSHIPS, ids[index], rest) end
    end
    write('ZREM', STEPS, members)
    return #members
  end

  -- Deletes joins that have ended up to `cutoff`, with at most `most` of their steps. The first piece deletes the record of a
  -- join, so that no verb finds it; the last one deletes the join. A join whose continuation is dead stays, because a replay
  -- looks at it again: it leaves `ended_joins` until its continuation is deleted. Returns true if some are left.
  function joins.purge(cutoff, most)
    while most > 0 do
      local join = call('ZRANGEBYSCORE', ENDED_JOINS, '-inf', cutoff, 'LIMIT', 0, 1)[1]
      if not join then return false end
      local record, deleted = joins.load(join), 0
      if record and record.wait and joins.is_continuation(record.wait) then
        call('ZREM', ENDED_JOINS, join)
      else
        call('HDEL', JOIN_STATES, join)
        call('ZREM', JOIN_INDEX, join)
        deleted = delete_steps(join, most)
        if deleted < most then
          call('ZREM', ENDED_JOINS, join)
          call('HDEL', JOINS, join)
        end
      end
      most = most - deleted - 1
    end
    return true
  end
end
