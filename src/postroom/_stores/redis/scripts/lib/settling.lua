-- Settling: applies outcomes where owner and fence still match.

-- The message that a sender's name means. Several sources may use it: then nothing is settled.
local function by_name(message_id, source)
  if source then return holder(source, message_id) end
  local first = call('HGET', DEDUP, message_id)
  if not first then return nil end
  if beginning(NAMESAKES, prefixed(message_id) .. 'h', 1)[1] then return 'ambiguous' end
  return sub(first, 1, 16)
end

local function still_held(progress, owner, fence)
  return progress[STATE] == 'c' and progress[OWNER] == owner and (not fence or progress[FENCE] == fence)
end

local function is_outdated(progress)
  return policy.requeue and progress[STALE] == 1
end

-- An outcome that is no success, of a message that is held. Who is next in its line is found out at the end.
local function apply(entry, outcome, stirred)
  local progress, id = entry.progress, entry.id
  local group = line_of(id)
  if group then
    stirred[group] = true
    end_batch(id, group)
  end
  if outcome.verdict == 'dead' then
    if outcome.counts then progress[ATTEMPT] = progress[ATTEMPT] + 1 end
    return bury(entry, outcome.error or '')
  end
  if outcome.verdict == 'retry' then
    progress[ATTEMPT] = progress[ATTEMPT] + 1
    if outcome.error then progress[ERROR] = outcome.error end
  end
  if group then unlock(group, id) end
  progress[LOST] = 0
  local delay = outcome.delay or 0
  if group and delay == 0 then put_back(entry, nil) else put_back(entry, now + delay) end
end

-- Successes: the many that are alike are one write each for all of them.
local function acknowledge(acks, stirred, kept)
  local ids = acks[1] and acks[1].ids or {}
  if #acks > 1 then
    ids = {}
    for _, ack in ipairs(acks) do
      for _, id in ipairs(ack.ids) do ids[#ids + 1] = id end
    end
  end
  if #ids == 0 then return end
  local records = fetch('HMGET', STATES, ids)
  local groups = call('HLEN', LINE) > 0 and fetch('HMGET', LINE, ids)
  local states, scores, done, lined, members_of = {}, {}, {}, {}, {}
  local finished = {}
  local index, count, in_line = 0, 0, 0
  for _, ack in ipairs(acks) do
    local verdicts = {} -- by record: false where it does not hold, otherwise the record of a done one
    for _, id in ipairs(ack.ids) do
      index = index + 1
      local record = records[index]
      local ending = record and verdicts[record]
      if record and ending == nil then
        local progress = view(record)
        ending = still_held(progress, ack.owner, ack.fence) and pack({
          'd', progress[FENCE], progress[ATTEMPT], progress[DELIVERIES], progress[REVISION], progress[LAST_SEEN],
          progress[EXPIRES], progress[OWNER], progress[STALE], now, 'handled', progress[ERROR], 0,
        })
        verdicts[record] = ending
      end
      if ending and not finished[id] then
        finished[id] = true
        kept[index] = '1'
        states[2 * count + 1], states[2 * count + 2] = id, ending
        scores[2 * count + 1], scores[2 * count + 2] = now_text, id
        count = count + 1
        done[count] = id
        local group = groups and groups[index]
        if group then
          stirred[group] = true
          in_line = in_line + 1
          lined[in_line], members_of[in_line] = id, prefixed(group) .. id
        end
      else
        kept[index] = '0'
      end
    end
  end
  if count == 0 then return end
  write('HSET', STATES, states)
  write('ZREM', CAPTURED, done)
  write('ZADD', DONE, scores)
  if policy.blank then
    for _, id in ipairs(done) do blank(load(id)) end
  end
  if in_line > 0 then
    write('HDEL', LINE, lined)
    write('ZREM', LINES, members_of)
    write('ZREM', LOCKS, members_of)
  end
end

-- Answers a digit for each ack, and one for each other outcome; or nil where a name means several.
local function settle(acks, others)
  local targets, stirred = {}, {}
  for index, outcome in ipairs(others) do
    local id = outcome.id or by_name(outcome.message_id, outcome.source)
    if id == 'ambiguous' then return nil end
    if id then targets[#targets + 1] = {id = id, outcome = outcome, index = index, order = outcome.order} end
  end
  -- An ack of content that has changed meanwhile is none, where the box says so: the message is given back.
  local requeued, place = {}, 0
  if policy.requeue then
    for _, ack in ipairs(acks) do
      for index, id in ipairs(ack.ids) do
        place = place + 1
        if is_outdated(view(call('HGET', STATES, id))) then
          local outcome = {owner = ack.owner, fence = ack.fence, verdict = 'release'}
          targets[#targets + 1] = {id = id, outcome = outcome, place = place, order = ack.orders[index]}
        end
      end
    end
  end
  local sooner, later = {}, {} -- later: successes among those that were named, not claimed
  for _, target in ipairs(targets) do
    if target.outcome.verdict == 'done' and not is_outdated(view(call('HGET', STATES, target.id))) then
      later[#later + 1] = target
    else
      sooner[#sooner + 1] = target
    end
  end
  -- What is not a success comes first, from the back: it ends the batches of its groups, so that a success further behind
  -- in the same line no longer holds. Giving a whole batch back then keeps every item.
  table.sort(sooner, function(one, other)
    if one.id ~= other.id then return one.id > other.id end
    return one.order < other.order
  end)
  local kept_acks, kept_others = {}, {}
  for index = 1, #others do kept_others[index] = '0' end
  for _, target in ipairs(sooner) do
    local entry, outcome = load(target.id), target.outcome
    if still_held(entry.progress, outcome.owner, outcome.fence) then
      apply(entry, outcome, stirred)
      if target.place then requeued[target.place] = true else kept_others[target.index] = '1' end
    end
  end
  acknowledge(acks, stirred, kept_acks)
  for position in pairs(requeued) do kept_acks[position] = '1' end
  for _, target in ipairs(later) do
    local entry, outcome = load(target.id), target.outcome
    if still_held(entry.progress, outcome.owner, outcome.fence) then
      finish(entry, 'handled', entry.progress[OWNER], policy.blank)
      kept_others[target.index] = '1'
    end
  end
  local groups = {}
  for group in pairs(stirred) do groups[#groups + 1] = group end
  promote_all(groups)
  return concat(kept_acks), concat(kept_others)
end
