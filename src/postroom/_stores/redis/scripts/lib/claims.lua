-- Claims: lease messages that are due and free, in the order of their times.

-- Candidates that one call reads, so that no script blocks the server for long. A claim by topic reads whole messages.
local MAX_CANDIDATES, MAX_CANDIDATES_BY_TOPIC = 20000, 500

-- Returns the ids of at most `count` candidates in the order of their times, and which of them have lost their lease. Those
-- are waiting messages that are due (`skip` of them are passed over) and claimed messages whose lease has ended
-- (`skip_lapsed`).
local function next_candidates(skip, skip_lapsed, count)
  local lapsed = call('ZRANGEBYSCORE', CAPTURED, '-inf', now, 'WITHSCORES', 'LIMIT', skip_lapsed, count)
  if #lapsed == 0 then
    return call('ZRANGEBYSCORE', PENDING, '-inf', now, 'LIMIT', skip, count), nil
  end
  local waiting = call('ZRANGEBYSCORE', PENDING, '-inf', now, 'WITHSCORES', 'LIMIT', skip, count)
  local ids, is_lapsed, w, l = {}, {}, 1, 1
  while #ids < count and (waiting[w] or lapsed[l]) do
    local due, lease_end = tonumber(waiting[w + 1]), tonumber(lapsed[l + 1])
    if not lease_end or (due and (due < lease_end or (due == lease_end and waiting[w] < lapsed[l]))) then
      ids[#ids + 1] = waiting[w]
      w = w + 2
    else
      ids[#ids + 1] = lapsed[l]
      is_lapsed[lapsed[l]] = true
      l = l + 2
    end
  end
  return ids, is_lapsed
end

-- True if a waiting message has a record in `states`. Every message in another state has one, so it is enough to count. For
-- MANY candidates this costs less than to read their records, which most waiting messages do not have.
local MANY = 32
local function has_touched_waiting()
  return call('HLEN', STATES) > call('ZCARD', SEEN) + call('ZCARD', CAPTURED) + call('ZCARD', DONE) + call('ZCARD', DLQ)
end

-- True if the lease of a claimed member still runs, or the caller still works on it.
local function is_held(claimed, in_hand)
  for index, lease_end in ipairs(fetch('ZMSCORE', CAPTURED, claimed)) do
    if lease_end and (tonumber(lease_end) > now or in_hand[claimed[index]]) then return true end
  end
  return false
end

-- Returns TAKE, ALONE, or why the message must become dead instead of being claimed. Equal records are one table (see
-- `read_progress`): each is checked once.
local TAKE, ALONE = 'take', 'take alone'
local verdicts = {}
local function verdict_on(progress)
  local verdict = verdicts[progress]
  if not verdict then
    verdict = cause_of_death(progress) or (is_suspect(progress) and ALONE) or TAKE
    verdicts[progress] = verdict
  end
  return verdict
end

-- Returns ids and progress of the members that a claim may take from a group that is not held. If a member of the front
-- must become dead first: nil, its id and the cause. A suspect is taken alone; the front behind it is read all the same,
-- since a claim makes dead what it finds there.
local function claimable_front(group, most, topics, suspects)
  local ids, progresses, read, is_complete = {}, {}, 0, false
  for id, progress, time in members(group) do
    if is_in_line(progress, time) then
      local ready = progress[STATE] == 'c' or not time or time <= now
      if progress[STATE] == 'x' or not ready or read == most
        or (topics and not topics[topic_of(call('HGET', MESSAGES, id))]) then
        break
      end
      read = read + 1
      local verdict = verdict_on(progress)
      if verdict ~= TAKE and verdict ~= ALONE then return nil, id, verdict end
      if verdict == ALONE and (#ids > 0 or not suspects) then is_complete = true end
      if not is_complete then ids[#ids + 1], progresses[#progresses + 1] = id, progress end
      is_complete = is_complete or verdict == ALONE
    end
  end
  return ids, progresses
end

-- Returns ids and progress of the members of a group that can be claimed. `claimed`: its claimed members. Makes members
-- dead that must not be claimed.
local function take_front(group, claimed, most, topics, suspects, in_hand)
  if is_held(claimed, in_hand) then return {}, {} end
  while true do
    local ids, progresses, cause = claimable_front(group, most, topics, suspects)
    if ids then return ids, progresses end
    bury(load(progresses), cause)
  end
end

-- Headers of MessagePack arrays of 4 and of 2 values.
local HEAD, PAIR = '\148', '\146'

-- Claims messages.
--
-- Request: `owner`, `lease` in microseconds, `limit`, `topics` (optional), `in_hand` (ids that the caller still works on),
-- `suspects` (whether a suspect may be claimed), `skip` ({waiting, lapsed}: candidates that an earlier call has passed over),
-- `separate` (whether the contents are returned one by one: this spares the server work, but needs a client with a fast
-- parser).
--
-- Returns a list of strings, as few as possible: a client without a fast parser spends some microseconds on each. The first
-- one is a MessagePack array:
--   * the end of the leases
--   * nil or, if the call stopped at its limit of candidates: the next call's `skip`
--   * the ids of the messages, in one string
--   * their progress: {{record, number of messages with it}, {record, number}, …}
-- The others are the contents, see `join_rows`.
local function claim(request)
  local lease_end, topics, most = now + request.lease, nil, request.limit
  local lease_end_text = format('%.0f', lease_end)
  if request.topics then
    topics = {}
    for _, topic in ipairs(request.topics) do topics[topic] = true end
  end
  local in_hand = {}
  for _, id in ipairs(request.in_hand) do in_hand[id] = true end
  local skip, skip_lapsed, suspects = request.skip[1], request.skip[2], request.suspects
  local read, more, max_candidates = 0, true, topics and MAX_CANDIDATES_BY_TOPIC or MAX_CANDIDATES
  local has_lines = call('HLEN', LINE) > 0
  local taken, count = {}, 0
  local runs, run_record, run_length = {}, nil, 0

  -- Packed records of claimed messages, by the progress before the claim.
  local records = {}
  local function claimed_record(progress)
    local record = records[progress]
    if not record then
      local claimed = copy(progress)
      claimed[STATE], claimed[OWNER], claimed[STALE], claimed[DELAYED] = 'c', request.owner, 0, false
      claimed[FENCE] = next_fence(progress)
      claimed[DELIVERIES] = progress[DELIVERIES] + 1
      claimed[LOST_LEASES] = lost_leases(progress)
      record = pack(claimed)
      records[progress] = record
    end
    return record
  end

  while count < most and read < max_candidates do
    if joins then joins.look() end -- in each round: a message that became dead in the last one may have been a step
    local ids, lapsed = next_candidates(skip, skip_lapsed, topics and math.max(most - count, 100) or most - count)
    local candidates = #ids
    more = candidates > 0
    if not more then break end
    read = read + candidates
    local progress_records = (lapsed or candidates < MANY or has_touched_waiting())
      and fetch('HMGET', STATES, ids)
    local groups = has_lines and fetch('HMGET', LINE, ids)
    local bodies = topics and fetch('HMGET', MESSAGES, ids)
    local handled, ours, expiring = {}, {}, {}
    local states, scores, locks, taken_before, filled = {}, {}, {}, count, 0

    local function take(id, progress, verdict)
      local record = claimed_record(progress)
      if verdict == ALONE then most = count + 1 end
      suspects = false
      count = count + 1
      taken[count] = id
      if record ~= run_record then
        if run_record then runs[#runs + 1] = PAIR .. run_record .. pack(run_length) end
        run_record, run_length = record, 0
      end
      run_length = run_length + 1
      states[filled + 1], states[filled + 2] = id, record
      scores[filled + 1], scores[filled + 2] = lease_end_text, id
      filled = filled + 2
      if progress[EXPIRES] ~= 0 then expiring[#expiring + 1] = id end
    end

    -- Leaves a candidate where it is. The next round starts behind it, unless `end_batch` has removed it from its set.
    local function pass_over(id)
      if lapsed and lapsed[id] then
        if call('ZSCORE', CAPTURED, id) then skip_lapsed = skip_lapsed + 1 end
      elseif call('ZSCORE', PENDING, id) then
        skip = skip + 1
      end
    end

    for index, id in ipairs(ids) do
      if count == most then break end
      local group = groups and groups[index]
      if handled[id] then
        -- taken with its group
      elseif in_hand[id] or (topics and not topics[topic_of(bodies[index])]) then
        pass_over(id)
      elseif group then
        local in_front = false
        if not ours[group] then
          local claimed = claimed_members(group)
          local front, progresses = take_front(group, claimed, most - count, topics, suspects, in_hand)
          if #front > 0 then
            -- The worker that held the group before has lost all of it, also what is not taken now.
            if #claimed > 0 then end_batch(front[#front], group) end
            for position, member in ipairs(front) do
              take(member, progresses[position], verdict_on(progresses[position]))
              handled[member] = true
              locks[#locks + 1], locks[#locks + 2] = '0', length_prefixed(group) .. member
              if member == id then in_front = true end
            end
            ours[group] = true
          end
        end
        if not in_front then
          -- Another member of its group is first, or it has become dead above. The first in line stays in its set; any
          -- other member leaves it until the front moves on.
          local entry = load(id)
          local state = entry.progress[STATE]
          if state == 'w' or state == 'c' then
            if first_in_line(group) == id then
              pass_over(id)
            else
              if state == 'c' then unlock(group, id) end
              put_back(entry, nil)
            end
          end
        end
      else
        local progress = progress_records and read_progress(progress_records[index]) or UNTOUCHED
        local verdict = verdict_on(progress)
        if verdict == TAKE or (verdict == ALONE and suspects) then take(id, progress, verdict)
        elseif verdict == ALONE then pass_over(id)
        else bury(load(id), verdict) end
      end
    end

    if count > taken_before then
      if count - taken_before == candidates and not lapsed and not has_lines then
        -- Every candidate is taken, and nothing else has changed in `pending`: they are a range of it.
        call('ZREMRANGEBYRANK', PENDING, skip, skip + candidates - 1)
      else
        local fresh = {}
        for index = taken_before + 1, count do fresh[index - taken_before] = taken[index] end
        write('ZREM', PENDING, fresh)
      end
      write('ZADD', CAPTURED, scores)
      write('HSET', STATES, states)
      if #expiring > 0 then write('ZREM', EXPIRING, expiring) end
      if #locks > 0 then write('ZADD', LOCKS, locks) end
    end
  end

  if run_record then runs[#runs + 1] = PAIR .. run_record .. pack(run_length) end

  -- Everything due is taken, unless the rest has topics of other workers: then no other worker needs a wake-up.
  if count < most and not topics then has_claimable = false end
  local stopped = count < most and more and read >= max_candidates
  local head = pack(lease_end, stopped and {skip, skip_lapsed} or nil, concat(taken))
  local reply = {HEAD .. head .. struct.pack('>BI4', 0xdd, #runs) .. concat(runs)}
  local contents = fetch('HMGET', MESSAGES, taken)
  for _, rows in ipairs(request.separate and contents or join_rows(contents, CONTENT_FIELDS)) do reply[#reply + 1] = rows end
  return reply
end
