-- Settlements: apply outcomes to claimed messages whose owner and fence still match.

-- Returned instead of a result, before any write: several sources use a message id, and the target names none of them.
local AMBIGUOUS = 'ambiguous'

-- Returns the id of the message that a target without a claim names, nil if there is none, or AMBIGUOUS.
local function id_by_name(message_id, source)
  if source then return holder(source, message_id) end
  local first = call('HGET', DEDUP, message_id)
  if not first then return nil end
  if members_with_prefix(NAMESAKES, length_prefixed(message_id) .. 'h', 1)[1] then return AMBIGUOUS end
  return sub(first, 1, 16)
end

-- True if the claim still holds. A target without a claim proves its owner only.
local function still_held(progress, owner, fence)
  return progress[STATE] == 'c' and progress[OWNER] == owner and (not fence or progress[FENCE] == fence)
end

-- True if the content was replaced under the lease and the box wants the message handled again (`on_stale_ack`).
local function is_outdated(progress)
  return policy.requeue and progress[STALE] == 1
end

-- Applies an outcome that is not a success to a message that is held. Adds its group to `changed_groups`: `settle` promotes
-- their first members at the end.
local function apply(entry, outcome, changed_groups)
  local progress, id = entry.progress, entry.id
  local group = line_of(id)
  if group then
    changed_groups[group] = true
    end_batch(id, group)
  end
  if outcome.verdict == 'dead' then
    if outcome.counts then progress[ATTEMPT] = progress[ATTEMPT] + 1 end
    return bury(entry, outcome.error or '')
  end
  if outcome.verdict == 'retry' then
    progress[ATTEMPT] = progress[ATTEMPT] + 1
    if outcome.error then progress[LAST_ERROR] = outcome.error end
  end
  if group then unlock(group, id) end
  progress[LOST_LEASES] = 0
  local delay = outcome.delay or 0
  if group and delay == 0 then put_back(entry, nil) else put_back(entry, now + delay) end
end

-- Returns the packed record of a message that is done after this success, or false if the claim no longer holds.
local function done_record(record, owner, fence)
  local progress = read_progress(record)
  if not still_held(progress, owner, fence) then return false end
  local done = copy(progress)
  done[STATE], done[COMPLETED_AT], done[ENDING], done[LOST_LEASES] = 'd', now, 'handled', 0
  return pack(done)
end

-- Applies successes of claims, with one command per key for all of them. Adds the positions of those that were lost to
-- `lost`, and groups to `changed_groups`.
local function acknowledge(acks, changed_groups, lost)
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
  local states, scores, done, lined, lines = {}, {}, {}, {}, {}
  local is_done = {}
  local index, count, filled, in_line = 0, 0, 0, 0
  for _, ack in ipairs(acks) do
    local done_records = {} -- by record before the success: equal records are one string
    for _, id in ipairs(ack.ids) do
      index = index + 1
      local record = records[index]
      local done_one = record and done_records[record]
      if record and done_one == nil then
        done_one = done_record(record, ack.owner, ack.fence)
        done_records[record] = done_one
      end
      if done_one and not is_done[id] then
        is_done[id] = true
        states[filled + 1], states[filled + 2] = id, done_one
        scores[filled + 1], scores[filled + 2] = now_text, id
        filled = filled + 2
        count = count + 1
        done[count] = id
        local group = groups and groups[index]
        if group then
          changed_groups[group] = true
          in_line = in_line + 1
          lined[in_line], lines[in_line] = id, length_prefixed(group) .. id
        end
      else
        lost[#lost + 1] = index
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
    write('ZREM', LINES, lines)
    write('ZREM', LOCKS, lines)
  end
  if joins then joins.move_steps(done, 'pending', 'completed') end
end

-- Applies outcomes.
--
-- `acks`: successes of claims, a list of {owner, fence, ids, orders}. `others`: all other outcomes, a list of {verdict, order,
-- owner, id and fence, or message_id and source, delay, error, counts, result}. `order` and `orders` are positions in the caller's
-- list.
--
-- Returns '' or, if outcomes were lost because their claims no longer hold: their positions in all acks, and in `others`, as two
-- lists in MessagePack. Returns AMBIGUOUS before any write if a target is ambiguous.
local function settle(acks, others)
  local targets, changed_groups = {}, {}
  for index, outcome in ipairs(others) do
    local id = outcome.id or id_by_name(outcome.message_id, outcome.source)
    if id == AMBIGUOUS then return AMBIGUOUS end
    if id then targets[#targets + 1] = {id = id, outcome = outcome, index = index, order = outcome.order} end
  end
  -- A success for outdated content becomes a release.
  local requeued, position = {}, 0
  if policy.requeue then
    for _, ack in ipairs(acks) do
      for index, id in ipairs(ack.ids) do
        position = position + 1
        if is_outdated(read_progress(call('HGET', STATES, id))) then
          local outcome = {owner = ack.owner, fence = ack.fence, verdict = 'release'}
          targets[#targets + 1] = {id = id, outcome = outcome, ack = position, order = ack.orders[index]}
        end
      end
    end
  end
  local named_successes, failures = {}, {}
  for _, target in ipairs(targets) do
    if target.outcome.verdict == 'done' and not is_outdated(read_progress(call('HGET', STATES, target.id))) then
      named_successes[#named_successes + 1] = target
    else
      failures[#failures + 1] = target
    end
  end
  -- Outcomes that are not successes come first, from the back of each line: they end the batches of their groups, so that a
  -- success further behind in the same line is lost, and a batch that is given back as a whole is kept as a whole.
  table.sort(failures, function(one, other)
    if one.id ~= other.id then return one.id > other.id end
    return one.order < other.order
  end)
  local kept = {}
  for _, target in ipairs(failures) do
    local entry, outcome = load(target.id), target.outcome
    if still_held(entry.progress, outcome.owner, outcome.fence) then
      apply(entry, outcome, changed_groups)
      if target.ack then requeued[target.ack] = true else kept[target.index] = true end
    end
  end
  local lost = {}
  acknowledge(acks, changed_groups, lost)
  local lost_acks, lost_others = {}, {}
  for _, index in ipairs(lost) do
    if not requeued[index] then lost_acks[#lost_acks + 1] = index end
  end
  for _, target in ipairs(named_successes) do
    local entry, outcome = load(target.id), target.outcome
    if still_held(entry.progress, outcome.owner, outcome.fence) then
      finish(entry, 'handled', entry.progress[OWNER], policy.blank)
      if outcome.result then keep_result(entry, outcome.result) end
      kept[target.index] = true
    end
  end
  for index = 1, #others do
    if not kept[index] then lost_others[#lost_others + 1] = index end
  end
  local groups = {}
  for group in pairs(changed_groups) do groups[#groups + 1] = group end
  promote_all(groups)
  return (#lost_acks > 0 or #lost_others > 0) and pack({lost_acks, lost_others}) or ''
end
