-- needs: entries names lines endings entering
-- Moves messages without a claim; a lease on them ends.
local mark, reason = given.mark, given.error
if mark == 'processed' and not has_ids(#given.message_ids) then return 'ids' end
even_if_full()

local function apply(entry)
  local progress = entry.progress
  local state = progress[STATE]
  if state == 'd' then return false end
  if mark == 'processing' then
    if state ~= 's' then return false end
    enter(entry, progress[EXPIRES] ~= 0 and progress[EXPIRES] or nil, nil)
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

local kept, bodies = {}, bodies_given()
for index, message_id in ipairs(given.message_ids) do
  local entry = known(given.sources[index], message_id)
  if not entry and mark == 'processed' then entry = insert(bodies[index]) end
  kept[index] = entry and apply(entry) and '1' or '0'
end
save_sequence()
tell()
return concat(kept)
