-- needs: entries names lines endings entering purging
-- Decides dedup, collapse and insert for each draft, in order. What is plainly new, as most is, is collected and written
-- with one command for all; anything else is looked at alone, after what was collected is written.
local message_ids, sources, groups, extras = given.message_ids, given.sources, given.groups, given.extras
local NOTHING = {}

if not has_ids(#message_ids) then return 'ids' end

local bodies = bodies_given()

-- In pairs, as commands take them. To ask a table for its length takes its time: it is known here.
local messages, dedup, pending, states, expiring, line, lines
local filled, waiting, in_line
local function collect()
  messages, dedup, pending, states, expiring, line, lines = {}, {}, {}, {}, {}, {}, {}
  filled, waiting, in_line = 0, 0, 0
end
collect()

local function flush()
  if filled == 0 then return end
  write('HSET', MESSAGES, messages)
  write('HSET', DEDUP, dedup)
  if waiting > 0 then write('ZADD', PENDING, pending) end
  if #states > 0 then write('HSET', STATES, states) end
  if #expiring > 0 then write('ZADD', EXPIRING, expiring) end
  if in_line > 0 then
    write('HSET', LINE, line)
    write('ZADD', LINES, lines)
  end
  collect()
end

local now_stamp = stamp(now)
local occupied = {} -- groups in which somebody is in line

local function look_at_lines()
  local asked = {}
  for _, group in ipairs(groups) do
    if group and occupied[group] == nil then
      occupied[group] = false
      asked[#asked + 1] = group
    end
  end
  for group in pairs(first_in_lines(asked)) do occupied[group] = true end
end

local function is_occupied(group)
  if occupied[group] == nil then occupied[group] = first_in_line(group) ~= nil end
  return occupied[group]
end

local function add(message_id, source, body, group, extra)
  local id = next_id()
  local due = extra.due
  messages[filled + 1], messages[filled + 2] = id, now_stamp .. body
  dedup[filled + 1], dedup[filled + 2] = message_id, id .. source
  filled = filled + 2
  local expires = extra.expires or (extra.lifetime and now + extra.lifetime)
  local is_early = group and due and due > now
  if expires or is_early then
    local progress = untouched()
    progress[EXPIRES], progress[FENCE] = expires or 0, is_early and EARLY or 0
    states[#states + 1], states[#states + 2] = id, pack(progress)
    if expires then expiring[#expiring + 1], expiring[#expiring + 2] = expires, id end
  end
  if due and due > now then
    pending[waiting + 1], pending[waiting + 2] = due, id
    waiting = waiting + 2
  elseif not (group and is_occupied(group)) then
    pending[waiting + 1], pending[waiting + 2] = now_text, id
    waiting = waiting + 2
    claimable = true
    if group then occupied[group] = true end
  end
  if group then
    line[in_line + 1], line[in_line + 2] = id, group
    lines[in_line + 1], lines[in_line + 2] = '0', prefixed(group) .. id
    in_line = in_line + 2
  end
  return sequence
end

-- Waiting ones of the same collapse key are done; a claimed one is never touched.
local function supersede(key)
  local older, kept = {}, {}
  for id in each_id(call('HGET', COLLAPSE, key) or '') do
    local entry = load(id)
    if entry.progress[STATE] == 'w' then older[#older + 1] = entry
    elseif entry.progress[STATE] == 'c' then kept[#kept + 1] = id end
  end
  call('HSET', COLLAPSE, key, concat(kept))
  table.sort(older, function(one, other) return one.id < other.id end)
  local ids = {}
  for index, entry in ipairs(older) do
    finish(entry, 'superseded', '', false)
    ids[index] = tonumber(entry.id)
  end
  return ids
end

local function reschedule(entry, due)
  local id, progress, group = entry.id, entry.progress, line_of(entry.id)
  local time, is_ahead = tonumber(call('ZSCORE', PENDING, id) or nil), due and due > now
  if progress[FENCE] > 0 then
    -- It has been tried: a new due time may add to its backoff, never shorten it.
    if is_ahead then offer(id, math.max(time or 0, due)) end
  elseif is_ahead then
    progress[FENCE] = group and EARLY or 0
    offer(id, due)
  elseif time and time > now then
    progress[FENCE] = 0
    offer(id, now)
  end
  save(entry)
  if group then promote(group) end
end

-- New content, old place: group and collapse key stay, and so does whatever a worker has begun.
local function replace(entry, new, extra)
  local old, progress = entry.content, entry.progress
  local changed = old.topic ~= new.topic or old.form ~= new.form or old.hash ~= new.hash
    or payload_of(old) ~= payload_of(new)
  local rest = rest_of(new)
  local due = new.due
  new.first_seen, new.group, new.collapse, new.received = old.first_seen, old.group, old.collapse, old.received
  entry.content = rebuild(entry.id, new, rest)
  if extra.expires then
    progress[EXPIRES] = extra.expires
    if progress[STATE] == 'w' then call('ZADD', EXPIRING, extra.expires, entry.id) end
  end
  if changed then progress[REVISION] = progress[REVISION] + 1 end
  local under_lease = changed and progress[STATE] == 'c'
  if under_lease then progress[STALE] = 1 end
  if progress[STATE] == 'w' then reschedule(entry, due) else save(entry) end
  return under_lease
end

-- Whether the draft of this index leaves the content of a known message as it is: `true` stands for all drafts.
local rejects = given.rejects
local function is_rejecting(index)
  return rejects == true or (rejects and rejects[index]) or false
end

-- A key that is known, and not only seen.
local function meet(entry, new, extra, conflict, rejecting)
  local progress, under_lease = entry.progress, false
  local status = ({d = 'done', x = 'dead'})[progress[STATE]] or 'duplicate'
  local updates = progress[STATE] ~= 'd' and not rejecting and not (conflict and extra.on_conflict == 'keep')
  if updates then under_lease = replace(entry, new, extra) end
  if progress[STATE] == 'x' and extra.revive_dead then
    revive(entry)
    status = 'revived'
  elseif conflict then
    status = 'conflict'
  end
  return {status, tonumber(entry.id), progress[STATE], {}, under_lease, updates}
end

local function put(message_id, source, body, extra, rejecting)
  local entry = known(source, message_id) or insert(body, extra.expires)
  local new = content_of(now_stamp .. body)
  local conflict = contradicts(new, entry.content)
  if conflict and extra.on_conflict == 'reject' then
    return {'rejected', tonumber(entry.id), entry.progress[STATE], {}, false, false}
  end
  entry.progress[LAST_SEEN] = now
  save(entry)
  if entry.progress[STATE] ~= 's' then return meet(entry, new, extra, conflict, rejecting) end
  new.first_seen = entry.content.first_seen
  entry.content = rebuild(entry.id, new, rest_of(new))
  local superseded = new.collapse and supersede(new.collapse) or {}
  enter(entry, extra.expires, extra.lifetime)
  return {conflict and 'conflict' or 'new', tonumber(entry.id), 'w', superseded, false, conflict}
end

if groups then look_at_lines() end
local receipts, added = {}, {}
local held = fetch('HMGET', DEDUP, message_ids)
for index, message_id in ipairs(message_ids) do
  local extra = extras[index] or NOTHING
  if held[index] or added[message_id] or extra.collapses then
    flush()
    occupied = {}
    receipts[index] = put(message_id, sources[index], bodies[index], extra, is_rejecting(index))
  else
    receipts[index] = add(message_id, sources[index], bodies[index], groups and groups[index] or nil, extra)
  end
  added[message_id] = true
end
flush()
save_sequence()
-- A box without a janitor must not grow for ever. What still deduplicates is not even looked at.
sweep(now - math.max(policy.retention, policy.window or 0), #message_ids + 8)
tell()
return pack(receipts)
