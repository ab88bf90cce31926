-- needs: entries known_keys fifo joins transitions arrivals
-- Moves messages without a claim; a lease on them ends. Arguments: `mark` and `error`, and those of lib/arrivals.lua. Returns
-- one digit per key: 1 if the message has changed.
local mark, reason = args.mark, args.error
if mark == 'processed' and not has_ids(#args.message_ids) then return NEEDS_IDS end
write_even_if_full()

local function apply(entry)
  local progress = entry.progress
  local state = progress[STATE]
  if state == 'd' then return false end
  if mark == 'processing' then
    if state ~= 's' then return false end
    enter_queue(entry, progress[EXPIRES] ~= 0 and progress[EXPIRES] or nil, nil)
  elseif mark == 'skipped' then
    if state ~= 'x' or not line_of(entry.id) then return false end
    leave_line(entry)
  elseif mark == 'processed' then
    finish(entry, 'marked', '', policy.blank)
  elseif state ~= 'x' then
    local group = line_of(entry.id)
    if group then end_batch(entry.id, group) end
    bury(entry, reason)
  else
    return false
  end
  return true
end

local changed, bodies = {}, split_bodies()
for index, message_id in ipairs(args.message_ids) do
  local entry = find_known(args.sources[index], message_id)
  if not entry and mark == 'processed' then entry = insert_seen(bodies[index]) end
  changed[index] = entry and apply(entry) and '1' or '0'
end
save_sequence()
publish_wakeup()
return concat(changed)
