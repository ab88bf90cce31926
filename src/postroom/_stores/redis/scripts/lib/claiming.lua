-- Claiming: leases what is due and free.

-- Candidates looked at in one call: a script must not keep the server for long. To see a topic, a whole message is read.
local MOST_LOOKS, MOST_LOOKS_INSIDE = 20000, 500

-- Those whose time has come, in order: waiting ones and those whose lease has passed.
local function candidates(skip, skip_lapsed, count)
  local lapsed = call('ZRANGEBYSCORE', CAPTURED, '-inf', now, 'WITHSCORES', 'LIMIT', skip_lapsed, count)
  if #lapsed == 0 then
    return call('ZRANGEBYSCORE', PENDING, '-inf', now, 'LIMIT', skip, count), {}
  end
  local waiting = call('ZRANGEBYSCORE', PENDING, '-inf', now, 'WITHSCORES', 'LIMIT', skip, count)
  local ids, is_lapsed, w, l = {}, {}, 1, 1
  while #ids < count and (waiting[w] or lapsed[l]) do
    local wait, lapse = tonumber(waiting[w + 1]), tonumber(lapsed[l + 1])
    if not lapse or (wait and (wait < lapse or (wait == lapse and waiting[w] < lapsed[l]))) then
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

-- Whether the lease of one of these has not passed, or the caller still works on it.
local function is_held(held, in_hand)
  for index, time in ipairs(fetch('ZMSCORE', CAPTURED, held)) do
    if time and (tonumber(time) > now or in_hand[held[index]]) then return true end
  end
  return false
end

-- What may be done with a message that could be claimed: 'take', 'take alone', or why it must die. Of many messages few
-- records differ, and those that do not are one table: each is judged once.
local TAKE, ALONE = 'take', 'take alone'
local judged = {}
local function judge(progress)
  local verdict = judged[progress]
  if not verdict then
    verdict = cause_of_death(progress) or (is_suspect(progress) and ALONE) or TAKE
    judged[progress] = verdict
  end
  return verdict
end

-- The members that one claim may take, while nobody holds the group; or the first of them that must die, and why. A
-- suspect is taken alone.
local function claimable_front(group, most, topics, suspects)
  local ids, records = {}, {}
  for id, progress, time in members(group) do
    if is_in_line(progress, time) then
      local ready = progress[STATE] == 'c' or not time or time <= now
      if progress[STATE] == 'x' or not ready or #ids == most
        or (topics and not topics[topic_of(call('HGET', MESSAGES, id))]) then
        break
      end
      local verdict = judge(progress)
      if verdict ~= TAKE and verdict ~= ALONE then return nil, id, verdict end
      if verdict == ALONE and (#ids > 0 or not suspects) then break end
      ids[#ids + 1], records[#records + 1] = id, progress
      if verdict == ALONE then break end
    end
  end
  return ids, records
end

-- What can be claimed at a candidate of a group. The dead are buried on the way.
local function front_of(group, held, most, topics, suspects, in_hand)
  if is_held(held, in_hand) then return {}, {} end
  while true do
    local ids, records, cause = claimable_front(group, most, topics, suspects)
    if ids then return ids, records end
    bury(load(records), cause)
  end
end

local function claim(ask)
  local lease_end, topics, most = now + ask.lease, nil, ask.limit
  local lease_end_text = format('%.0f', lease_end)
  if ask.topics then
    topics = {}
    for _, topic in ipairs(ask.topics) do topics[topic] = true end
  end
  local taken, records, count = {}, {}, 0
  local in_lines = call('HLEN', LINE) > 0
  local skip, skip_lapsed, suspects = ask.skip[1], ask.skip[2], ask.suspects
  local in_hand = {}
  for _, id in ipairs(ask.in_hand) do in_hand[id] = true end
  local looked, more, most_looks = 0, true, topics and MOST_LOOKS_INSIDE or MOST_LOOKS

  -- Where a server has lost what it had written last, a claim of before must not look like one of after: the time is in it.
  local first_fence = math.floor(now / 1000)

  -- Records of claimed messages, by what they were.
  local claimed = {}
  local function claimed_record(progress)
    local record = claimed[progress]
    if not record then
      record = pack({
        'c', math.max(progress[FENCE] + 1, first_fence), progress[ATTEMPT], progress[DELIVERIES] + 1, progress[REVISION], progress[LAST_SEEN],
        progress[EXPIRES], ask.owner, 0, progress[COMPLETED], progress[ENDING], progress[ERROR], lost_leases(progress),
      })
      claimed[progress] = record
    end
    return record
  end

  while count < most and looked < most_looks do
    local ids, lapsed = candidates(skip, skip_lapsed, topics and math.max(most - count, 100) or most - count)
    more = #ids > 0
    if not more then break end
    looked = looked + #ids
    local progress_of = fetch('HMGET', STATES, ids)
    local groups = in_lines and fetch('HMGET', LINE, ids)
    local bodies = topics and fetch('HMGET', MESSAGES, ids)
    local touched, ours, expiring = {}, {}, {}
    local states, scores, locks, begin, filled = {}, {}, {}, count, 0

    local function take(id, progress)
      local record = claimed_record(progress)
      if judge(progress) == ALONE then most = count + 1 end -- and nothing else
      suspects = false
      count = count + 1
      taken[count], records[count] = id, record
      states[filled + 1], states[filled + 2] = id, record
      scores[filled + 1], scores[filled + 2] = lease_end_text, id
      filled = filled + 2
      if progress[EXPIRES] ~= 0 then expiring[#expiring + 1] = id end
    end

    -- It stays where it is, and is passed by next time; unless another batch was ended, and this with it.
    local function pass_by(id)
      if lapsed[id] then
        if call('ZSCORE', CAPTURED, id) then skip_lapsed = skip_lapsed + 1 end
      elseif call('ZSCORE', PENDING, id) then
        skip = skip + 1
      end
    end

    for index, id in ipairs(ids) do
      if count == most then break end
      local group = groups and groups[index]
      if touched[id] then
        -- taken with its group, or buried on the way
      elseif in_hand[id] or (topics and not topics[topic_of(bodies[index])]) then
        pass_by(id)
      elseif group then
        local in_front = false
        if not ours[group] then
          local held = holders(group)
          local front, views_of = front_of(group, held, most - count, topics, suspects, in_hand)
          if #front > 0 then
            -- The worker that held the group before has lost all of it, not only what is taken now.
            if #held > 0 then end_batch(front[#front], group) end
            for place, member in ipairs(front) do
              take(member, views_of[place])
              touched[member] = true
              locks[#locks + 1], locks[#locks + 2] = '0', prefixed(group) .. member
              if member == id then in_front = true end
            end
            ours[group] = true
          end
        end
        if not in_front then
          -- Not its turn, or it is dead by now. The first in line stays where it is; any other waits until the front of its
          -- group moves on.
          local entry = load(id)
          local state = entry.progress[STATE]
          if state == 'w' or state == 'c' then
            if first_in_line(group) == id then
              pass_by(id)
            else
              if state == 'c' then unlock(group, id) end
              put_back(entry, nil)
            end
          end
        end
      else
        local progress = view(progress_of[index])
        local verdict = judge(progress)
        if verdict == TAKE or (verdict == ALONE and suspects) then take(id, progress)
        elseif verdict == ALONE then pass_by(id)
        else bury(load(id), verdict) end
      end
    end

    if count > begin then
      local fresh = {}
      for index = begin + 1, count do fresh[index - begin] = taken[index] end
      write('ZREM', PENDING, fresh)
      write('ZADD', CAPTURED, scores)
      write('HSET', STATES, states)
      if #expiring > 0 then write('ZREM', EXPIRING, expiring) end
      if #locks > 0 then write('ZADD', LOCKS, locks) end
    end
  end

  -- The messages as one MessagePack array of [id, content, progress].
  local parts = {struct.pack('>BI4', 0xdd, count)}
  for index, body in ipairs(fetch('HMGET', MESSAGES, taken)) do
    local at = 5 * index - 3
    parts[at], parts[at + 1], parts[at + 2] = '\147\176', taken[index], '\158'
    parts[at + 3], parts[at + 4] = body, records[index]
  end
  -- All that there was is taken, unless the rest is for workers of other topics: then no other worker need be woken.
  if count < most and not topics then claimable = false end
  local again = count < most and more and looked >= most_looks
  return concat(parts), lease_end, again and pack({skip, skip_lapsed}) or ''
end
