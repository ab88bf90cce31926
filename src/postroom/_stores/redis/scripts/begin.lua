-- needs: entries known_keys fifo joins transitions arrivals join_cleaning cleaning
-- Begins executions of a guard: claims the records with these keys, and inserts those that are not there.
--
-- Arguments: `owners`; `leases` in microseconds, false: the lease has no end; `no_end`: the end of such a lease; and those of
-- lib/arrivals.lua.
--
-- Returns a list. The first value is MessagePack: per key {status, id, fence, end of the lease, deliveries, format, error}, by
-- name where it has one. The others are the results of processed records that have a `format`, in order, as they are packed.
if not has_ids(#args.message_ids) then return NEEDS_IDS end
local bodies = split_bodies()
local begun, results = {}, {''} -- the first result is replaced at the end

-- The rule is `decide_begin` in the kernel. Only the content hash counts, and not the topic.
local function is_conflict(new, old)
  return new.hash and old.hash and new.hash_algorithm == old.hash_algorithm and new.hash ~= old.hash
end

local function insert(body)
  local content = content_of(pack_time(now) .. body)
  local entry = setmetatable({id = next_id(), progress = untouched(), content = content}, Entry)
  call('HSET', MESSAGES, entry.id, content.body)
  hold_key(entry.id, content.source, content.message_id)
  return entry
end

local function claim(entry, index)
  local id, progress, lease = entry.id, entry.progress, args.leases[index]
  local lease_end = lease and now + lease or args.no_end
  progress[LOST_LEASES] = lost_leases(progress)
  progress[STATE], progress[OWNER], progress[STALE], progress[DELAYED] = 'c', args.owners[index], 0, false
  progress[FENCE], progress[DELIVERIES] = next_fence(progress), progress[DELIVERIES] + 1
  save(entry)
  call('ZADD', CAPTURED, format('%.0f', lease_end), id)
  return {status = 'acquired', id = tonumber(id), fence = progress[FENCE], lease_end = lease_end,
          deliveries = progress[DELIVERIES]}
end

local function begin_known(entry, index)
  local progress, content = entry.progress, entry.content
  local state = progress[STATE]
  if is_conflict(content_of(pack_time(now) .. bodies[index]), content) then return {status = 'conflict'} end
  if state == 'd' then
    if content.format == 'text' then return {status = 'processed'} end
    results[#results + 1] = payload_of(content)
    return {status = 'processed', format = content.format}
  end
  if state == 'x' then return {status = 'dead', error = progress[LAST_ERROR] or nil} end
  if state == 'c' then
    local lease_end = tonumber(call('ZSCORE', CAPTURED, entry.id))
    if lease_end > now then
      if progress[OWNER] ~= args.owners[index] then return {status = 'busy', lease_end = lease_end} end
      return {status = 'acquired', id = tonumber(entry.id), fence = progress[FENCE], lease_end = lease_end,
              deliveries = progress[DELIVERIES]}
    end
  end
  if state ~= 'c' then leave(entry, state, true) end
  progress[LAST_SEEN] = now
  return claim(entry, index)
end

for index, message_id in ipairs(args.message_ids) do
  local entry = find_known(args.sources[index], message_id)
  begun[index] = entry and begin_known(entry, index) or claim(entry or insert(bodies[index]), index)
end
save_sequence()
-- A box without a janitor must not grow without bound.
sweep(now - math.max(policy.retention, policy.window or 0), #args.message_ids + 8)
results[1] = pack(begun)
return results
