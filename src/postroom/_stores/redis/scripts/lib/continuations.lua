-- Looks: a claim looks at the joins whose continuations are due, and ends those that have ended. Only boxes with joins have
-- these functions: see lib/joins.lua.

if joins then
  -- Looks of one round of a claim, so that no script blocks the server for long.
  local MAX_LOOKS = 500

  -- Returns the error of a continuation whose join has failed. The same text as `failure_of` in _kernel/joins.py.
  local function failure_of(record)
    local ended = record.completed + record.failed
    if joins.has_pending_steps(record) or record.failed == 0 then
      return format('the join failed: its deadline has passed, and %d of its steps have ended', ended)
    end
    return format('the join failed: %d of %d steps failed', record.failed, ended)
  end

  -- Gives a continuation its topic and payload. From now on it is a message like others.
  local function follow_up(id, follows)
    local content = load(id).content
    local headers = sub(content.body, content.rest + 1, (cmsgpack.unpack_one(content.body, content.rest)))
    content.topic, content.format = follows.topic, follows.format
    write_content(id, content, headers .. follows.payload)
    call('ZREM', WAITS, id)
    call('HDEL', CONTINUATIONS, id)
    offer(id, now)
  end

  local function sleep(id, join, record)
    if record.status ~= 'pending' then -- its continuation was replayed, after a replay of its failed steps
      record.status = 'pending'
      joins.save(join, record)
      call('ZREM', ENDED_JOINS, join)
    end
    call('ZADD', WAITS, record.deadline or '+inf', id)
  end

  -- Ends the join of a continuation if all its steps have ended or its deadline has passed. Otherwise the continuation
  -- sleeps.
  local function look(id)
    local wait = unpack_message(call('HGET', CONTINUATIONS, id))
    local record = joins.load(wait.join)
    local status = joins.status_by_steps(record)
    if status == 'pending' then return sleep(id, wait.join, record) end
    joins.finish(wait.join, record, status)
    local follows = wait.on_fail
    if status == 'completed' then follows = wait.on_complete end
    if follows then follow_up(id, follows)
    elseif status == 'completed' then finish(load(id), 'joined', '', false)
    else bury(load(id), failure_of(record)) end
  end

  -- Looks at the joins of all continuations that are due. A look takes a continuation out of those that are due, and wakes at
  -- most the continuations of joins of which it is a step.
  function joins.look()
    local looks = 0
    while looks < MAX_LOOKS do
      local due = call('ZRANGEBYSCORE', WAITS, '-inf', now, 'LIMIT', 0, MAX_LOOKS - looks)
      if #due == 0 then return end
      for _, id in ipairs(due) do look(id) end
      looks = looks + #due
    end
  end
end
