-- Puts that concern joins: messages that become steps, and continuations.
--
-- Arguments: `joins`: by position, the join of which the message becomes a step. `wait`: the only draft is the continuation
-- of a join: {join, fails, on_complete, on_fail}, and of these two {topic, format, length}. The payloads, packed, are behind
-- the contents in ARGV[4].

local join_puts = {}

if args.joins or args.wait then
  -- Returns why a join does not take the messages of this put, or nil. Messages with equal keys are one step.
  function join_puts.refused_steps(message_ids, sources, holders)
    if not joins then return NO_JOIN end
    local found, new, known, seen = {}, {}, {}, {}

    -- Returns the id of the message that `find_known` will find, or nil.
    local function known_id(index)
      local id = holders[index] and holder(sources[index], message_ids[index])
      if id and not (policy.window and load(id).content.first_seen + policy.window <= now) then return id end
    end

    for index, message_id in ipairs(message_ids) do
      local join = args.joins[index]
      local key = join and join .. length_prefixed(sources[index]) .. message_id
      if join and not seen[key] then
        seen[key] = true
        if not new[join] then
          found[#found + 1] = join
          new[join], known[join] = 0, {}
        end
        local id = known_id(index)
        if id then known[join][id] = true end
        if not (id and joins.position_of_step(call('HGET', MEMBERSHIPS, id), join)) then new[join] = new[join] + 1 end
      end
    end
    for _, join in ipairs(found) do
      local record = joins.load(join)
      local reason = not record and NO_JOIN or joins.refusal(record, known[join], new[join])
      if reason then return reason end
    end
  end

  -- Returns the id in a receipt.
  local function id_in(receipt)
    return format('%016d', type(receipt) == 'table' and receipt[2] or receipt)
  end

  -- Attaches the messages of this put to their joins, each join once.
  function join_puts.attach_steps(receipts)
    local found, ids = {}, {}
    for index, receipt in ipairs(receipts) do
      local join = args.joins[index]
      if join then
        if not ids[join] then
          found[#found + 1] = join
          ids[join] = {}
        end
        ids[join][#ids[join] + 1] = id_in(receipt)
      end
    end
    for _, join in ipairs(found) do joins.attach(join, joins.load(join), ids[join]) end
  end

  -- Returns the reply to a put of a continuation if there is nothing to put: a reason, or the receipt of the continuation that
  -- the join has. It is found by its id: a deduplication window that has passed must not let a join have two.
  function join_puts.reply_without_put(wait)
    local record = joins and joins.load(wait.join)
    if not record then return NO_JOIN end
    if record.wait and call('HEXISTS', MESSAGES, record.wait) == 1 then
      local entry = load(record.wait)
      local state = entry.progress[STATE]
      entry.progress[LAST_SEEN] = now
      save(entry)
      return pack({{({d = 'done', x = 'dead'})[state] or 'duplicate', tonumber(entry.id), state, {}, false, false}})
    end
    if record.status ~= 'pending' then return JOIN_ENDED end
  end

  -- Makes the message of this put the continuation of its join. If another message has its key, the receipt says so.
  function join_puts.begin_wait(wait, receipt)
    if type(receipt) == 'table' and receipt[1] ~= 'new' then
      receipt[1] = 'conflict'
      return
    end
    local id, record, from = id_in(receipt), joins.load(wait.join), args.lengths[1] + 1
    for _, follows in ipairs({wait.on_complete or false, wait.on_fail or false}) do
      if follows then
        follows.payload = sub(ARGV[4], from, from + follows.length - 1)
        from = from + follows.length
      end
    end
    call('ZREM', PENDING, id)
    call('ZADD', WAITS, record.deadline or '+inf', id)
    call('HSET', CONTINUATIONS, id, pack(wait))
    record.wait, record.fails = id, wait.fails
    joins.save(wait.join, record)
    has_claimable = false
    joins.wake(record)
  end
end
