-- needs: entries known_keys fifo joins transitions arrivals join_puts join_cleaning cleaning
-- Puts drafts: decides deduplication, collapse and insert for each, in order.
--
-- Arguments: those of lib/arrivals.lua and lib/join_puts.lua; `groups` (of a FIFO box: one per draft, or false); `extras` by
-- position: {collapses, due, expires, lifetime, on_conflict, revive_dead}; `rejects`: true, or by position: a known message
-- keeps its content.
--
-- Returns one receipt per draft, as MessagePack: the id if the message is new and superseded nothing, otherwise {status, id,
-- state, superseded ids, replaced under lease, updated}.
--
-- New messages are collected and written with one command per key. A draft whose message id is known, or that collapses, is
-- handled alone, after the collected messages are written.
local message_ids, sources, groups, extras = args.message_ids, args.sources, args.groups, args.extras
local NO_EXTRA = {}

local holders = fetch('HMGET', DEDUP, message_ids)
local refused = args.joins and join_puts.refused_steps(message_ids, sources, holders)
  or args.wait and join_puts.reply_without_put(args.wait)
if refused then return refused end
if not has_ids(#message_ids) then return NEEDS_IDS end

local bodies = split_bodies()

-- -- new messages ----------------------------------------------------------------------------------------------------

-- Collected arguments of commands, in pairs. Their lengths are counted here: `#` costs a search in the table.
local messages, dedup, pending, states, expiring, line, lines
local filled, waiting, in_line
local function start_collecting()
  messages, dedup, pending, states, expiring, line, lines = {}, {}, {}, {}, {}, {}, {}
  filled, waiting, in_line = 0, 0, 0
end
start_collecting()

local function write_collected()
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
  start_collecting()
end

local packed_now = pack_time(now)
local has_first = {} -- by group: true if a member is in line, so that a new one stands behind it

local function read_lines()
  local asked = {}
  for _, group in ipairs(groups) do
    if group and has_first[group] == nil then
      has_first[group] = false
      asked[#asked + 1] = group
    end
  end
  for group in pairs(first_in_lines(asked)) do has_first[group] = true end
end

local function stands_behind(group)
  if has_first[group] == nil then has_first[group] = first_in_line(group) ~= nil end
  return has_first[group]
end

-- Collects a new message, and returns its receipt.
local function collect(message_id, source, body, group, extra)
  local id = next_id()
  local due = extra.due
  messages[filled + 1], messages[filled + 2] = id, packed_now .. body
  dedup[filled + 1], dedup[filled + 2] = message_id, id .. source
  filled = filled + 2
  local expires = extra.expires or (extra.lifetime and now + extra.lifetime)
  local is_ahead = due and due > now
  local is_delayed = group and is_ahead
  if expires or is_delayed then
    local progress = untouched()
    progress[EXPIRES], progress[DELAYED] = expires or 0, is_delayed and true or false
    states[#states + 1], states[#states + 2] = id, pack(progress)
    if expires then expiring[#expiring + 1], expiring[#expiring + 2] = expires, id end
  end
  if is_ahead then
    pending[waiting + 1], pending[waiting + 2] = due, id
    waiting = waiting + 2
  elseif not (group and stands_behind(group)) then
    pending[waiting + 1], pending[waiting + 2] = now_text, id
    waiting = waiting + 2
    has_claimable = true
    if group then has_first[group] = true end
  end
  if group then
    line[in_line + 1], line[in_line + 2] = id, group
    lines[in_line + 1], lines[in_line + 2] = '0', length_prefixed(group) .. id
    in_line = in_line + 2
  end
  return sequence
end

-- -- known keys and collapse -----------------------------------------------------------------------------------------

-- Makes the waiting messages of a collapse key done, and returns their ids. A claimed message is never superseded. The message
-- `new` takes their places in joins; `joining` is the join of which it becomes a step anyway.
local function supersede(key, new, joining)
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
    if joins then joins.replace_step(entry.id, new, joining) end
    finish(entry, 'superseded', '', false)
    ids[index] = tonumber(entry.id)
  end
  return ids
end

-- Applies the due time of new content to a waiting message, and saves it. A message that was tried keeps its backoff: a due
-- time may lengthen it, never shorten it.
local function reschedule(entry, due)
  local id, progress, group = entry.id, entry.progress, line_of(entry.id)
  local time, is_ahead = tonumber(call('ZSCORE', PENDING, id) or nil), due and due > now
  if progress[FENCE] > 0 then
    if is_ahead then offer(id, math.max(time or 0, due)) end
  elseif is_ahead then
    progress[DELAYED] = group ~= nil
    offer(id, due)
  elseif time and time > now then
    progress[DELAYED] = false
    offer(id, now)
  end
  save(entry)
  if group then promote(group) end
end

-- Replaces the content of a known message. Its group, collapse key and progress stay. Returns true if the content was
-- replaced under a lease.
local function replace(entry, new, extra)
  local old, progress = entry.content, entry.progress
  local changed = old.topic ~= new.topic or old.format ~= new.format or old.hash ~= new.hash
    or payload_of(old) ~= payload_of(new)
  local rest = rest_of(new)
  local due = new.due
  new.first_seen, new.group, new.collapse_key, new.received_at =
    old.first_seen, old.group, old.collapse_key, old.received_at
  entry.content = write_content(entry.id, new, rest)
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

local rejects = args.rejects
local function is_rejecting(index)
  return rejects == true or (rejects and rejects[index]) or false
end

-- Returns the receipt of a draft whose key is known in another state than seen.
local function meet_known(entry, new, extra, conflict, rejecting)
  local progress, under_lease = entry.progress, false
  local status = ({d = 'done', x = 'dead'})[progress[STATE]] or 'duplicate'
  local updates = progress[STATE] ~= 'd' and not rejecting and not (conflict and extra.on_conflict == 'keep')
    and not (joins and joins.is_of_join(entry)) -- what it becomes was decided when it was put
  if updates then under_lease = replace(entry, new, extra) end
  if progress[STATE] == 'x' and extra.revive_dead then
    revive(entry)
    status = 'revived'
  elseif conflict then
    status = 'conflict'
  end
  return {status, tonumber(entry.id), progress[STATE], {}, under_lease, updates}
end

-- Puts one draft alone, and returns its receipt.
local function put(message_id, source, body, extra, rejecting, joining)
  local entry = find_known(source, message_id) or insert_seen(body, extra.expires)
  local new = content_of(packed_now .. body)
  local conflict = contradicts(new, entry.content)
  if conflict and extra.on_conflict == 'reject' then
    return {'rejected', tonumber(entry.id), entry.progress[STATE], {}, false, false}
  end
  entry.progress[LAST_SEEN] = now
  save(entry)
  if entry.progress[STATE] ~= 's' then return meet_known(entry, new, extra, conflict, rejecting) end
  new.first_seen = entry.content.first_seen
  entry.content = write_content(entry.id, new, rest_of(new))
  local superseded = new.collapse_key and supersede(new.collapse_key, entry.id, joining) or {}
  enter_queue(entry, extra.expires, extra.lifetime)
  return {conflict and 'conflict' or 'new', tonumber(entry.id), 'w', superseded, false, conflict}
end

-- -- all drafts ------------------------------------------------------------------------------------------------------

if groups then read_lines() end
local receipts, added = {}, {}
for index, message_id in ipairs(message_ids) do
  local extra = extras[index] or NO_EXTRA
  if holders[index] or added[message_id] or extra.collapses then
    write_collected()
    has_first = {}
    local joining = args.joins and args.joins[index]
    receipts[index] = put(message_id, sources[index], bodies[index], extra, is_rejecting(index), joining)
  else
    receipts[index] = collect(message_id, sources[index], bodies[index], groups and groups[index] or nil, extra)
  end
  added[message_id] = true
end
write_collected()
save_sequence()
if args.joins then join_puts.attach_steps(receipts) end
if args.wait then join_puts.begin_wait(args.wait, receipts[1]) end
-- A box without a janitor must not grow without bound.
sweep(now - math.max(policy.retention, policy.window or 0), #message_ids + 8)
publish_wakeup()
return pack(receipts)
