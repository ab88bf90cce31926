-- Which messages fit a filter.

-- Adds the ids of a message id: who holds it, and those of other sources and of earlier lives.
local function add_ids_of(message_id, ids)
  local first = call('HGET', DEDUP, message_id)
  if first then ids[#ids + 1] = sub(first, 1, 16) end
  for _, member in ipairs(beginning(NAMESAKES, prefixed(message_id), -1)) do ids[#ids + 1] = id_of(member) end
end

-- The ids that a filter names, by themselves or by keys, each once. `named[id]` is true, or the set of sources that keys
-- ask for.
local named = {}
local function named_by(filter)
  local ids = {}
  for _, id in ipairs(filter.ids or {}) do
    if not named[id] then
      named[id] = true
      ids[#ids + 1] = id
    end
  end
  for _, key in ipairs(filter.keys or {}) do
    local found = {}
    add_ids_of(key[2], found)
    for _, id in ipairs(found) do
      if not named[id] then
        named[id] = {}
        ids[#ids + 1] = id
      end
      if named[id] ~= true then named[id][key[1]] = true end
    end
  end
  return ids
end

-- The ids among which to look, in order, after `after`; and whether these are all.
local function choose(filter)
  local ids = {}
  if filter.ids or filter.keys then
    ids = named_by(filter)
  elseif filter.message_id then
    add_ids_of(filter.message_id, ids)
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
  local sources = named[id]
  if type(sources) == 'table' and not sources[content.source] then return false end
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
