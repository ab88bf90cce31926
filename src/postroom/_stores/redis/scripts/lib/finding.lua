-- Which messages fit a filter.

-- The ids among which to look, in order, after `after`; and whether these are all.
local function choose(filter)
  local ids = {}
  if filter.ids then
    ids = filter.ids
  elseif filter.message_id then
    -- Whoever holds it, and those of other sources and of earlier lives.
    local first = call('HGET', DEDUP, filter.message_id)
    if first then ids[1] = sub(first, 1, 16) end
    for _, member in ipairs(beginning(NAMESAKES, prefixed(filter.message_id), -1)) do ids[#ids + 1] = id_of(member) end
  elseif filter.set == 'captured' then
    ids = call('ZRANGE', CAPTURED, 0, -1)
  elseif filter.set == 'dlq' or filter.set == 'seen' then
    local set = filter.set == 'dlq' and DLQ or SEEN
    ids = call('ZRANGEBYSCORE', set, '(' .. filter.after, '+inf', 'LIMIT', 0, filter.looks)
    return ids, #ids < filter.looks
  else
    local after = tonumber(filter.after) + 1
    local most = math.ceil(filter.looks / PAGE)
    local pages = call('ZRANGEBYSCORE', INDEX, math.floor(after / PAGE), '+inf', 'LIMIT', 0, most)
    for _, page in ipairs(pages) do
      for id = math.max(after, page * PAGE), page * PAGE + PAGE - 1 do ids[#ids + 1] = format('%016d', id) end
    end
    return ids, #pages < most
  end
  table.sort(ids)
  local later = {}
  for _, id in ipairs(ids) do
    if tonumber(id) > tonumber(filter.after) then later[#later + 1] = id end
  end
  return later, true
end

local function fits(filter, id, progress, body)
  if filter.states and not filter.states[progress[STATE]] then return false end
  if filter.blocking and not (progress[STATE] == 'x' and line_of(id)) then return false end
  if not filter.looks_inside then return true end
  local content = content_of(body)
  return (not filter.topic or content.topic == filter.topic)
    and (not filter.source or content.source == filter.source)
    and (not filter.message_id or content.message_id == filter.message_id)
    and (not filter.group or content.group == filter.group)
    and (not filter.correlation_id or content.correlation == filter.correlation_id)
end

-- Answers ids, from where to go on ('' where there is nothing more), contents and records.
local function find(filter)
  local ids, complete = choose(filter)
  local bodies, records = fetch('HMGET', MESSAGES, ids), fetch('HMGET', STATES, ids)
  local found, bodies_of, records_of = {}, {}, {}
  for index, id in ipairs(ids) do
    if bodies[index] and fits(filter, id, view(records[index]), bodies[index]) then
      local place = #found + 1
      found[place], bodies_of[place], records_of[place] = id, bodies[index], records[index]
      if place == filter.limit then return found, id, bodies_of, records_of end
    end
  end
  return found, complete and '' or ids[#ids], bodies_of, records_of
end
