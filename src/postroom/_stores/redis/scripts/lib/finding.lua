-- Finding: which messages match a filter.
--
-- Filter: `after` (an id) and `limit`; `reads`: messages that one call reads at most; `set`: the only key to read; `states`;
-- `ids`, `keys`; `blocking`; and the content fields topic, source, message_id, group, correlation_id. `reads_content` is true
-- if content fields restrict.

-- Adds the ids of all messages with this message id: of all sources, and of keys that were taken over.
local function add_ids_of(message_id, ids)
  local first = call('HGET', DEDUP, message_id)
  if first then ids[#ids + 1] = sub(first, 1, 16) end
  for _, member in ipairs(members_with_prefix(NAMESAKES, length_prefixed(message_id), -1)) do
    ids[#ids + 1] = id_of(member)
  end
end

-- Returns the ids that a filter names by `ids` or `keys`, each once. `named[id]` is true, or the set of sources that the keys
-- ask for.
local named = {}
local function named_ids(filter)
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

-- Returns the ids to check, in order, after `after`; and whether there are no more behind them.
local function ids_to_check(filter)
  local ids = {}
  if filter.ids or filter.keys then
    ids = named_ids(filter)
  elseif filter.message_id then
    add_ids_of(filter.message_id, ids)
  elseif filter.set == 'captured' then
    ids = call('ZRANGE', CAPTURED, 0, -1)
  elseif filter.set == 'dlq' or filter.set == 'seen' then
    local set = filter.set == 'dlq' and DLQ or SEEN
    ids = call('ZRANGEBYSCORE', set, '(' .. filter.after, '+inf', 'LIMIT', 0, filter.reads)
    return ids, #ids < filter.reads
  else
    local after = tonumber(filter.after) + 1
    local most = math.ceil(filter.reads / PAGE)
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

local function matches(filter, id, progress, body)
  if filter.states and not filter.states[progress[STATE]] then return false end
  if filter.blocking and not (progress[STATE] == 'x' and line_of(id)) then return false end
  if not filter.reads_content then return true end
  local content = content_of(body)
  local sources = named[id]
  if type(sources) == 'table' and not sources[content.source] then return false end
  return (not filter.topic or content.topic == filter.topic)
    and (not filter.source or content.source == filter.source)
    and (not filter.message_id or content.message_id == filter.message_id)
    and (not filter.group or content.group == filter.group)
    and (not filter.correlation_id or content.correlation_id == filter.correlation_id)
end

-- Returns the ids of matching messages, the `after` of the next call ('' if there is nothing more), and their contents and
-- records.
local function find(filter)
  local ids, is_complete = ids_to_check(filter)
  local bodies, records = fetch('HMGET', MESSAGES, ids), fetch('HMGET', STATES, ids)
  local found, found_bodies, found_records = {}, {}, {}
  for index, id in ipairs(ids) do
    if bodies[index] and matches(filter, id, read_progress(records[index]), bodies[index]) then
      local position = #found + 1
      found[position], found_bodies[position], found_records[position] = id, bodies[index], records[index]
      if position == filter.limit then return found, id, found_bodies, found_records end
    end
  end
  return found, is_complete and '' or ids[#ids], found_bodies, found_records
end
