-- needs: entries names lines endings entering
-- Notes that keys were seen, and tells what was known of them.
if not has_ids(#given.message_ids) then return 'ids' end
local sightings, bodies = {}, bodies_given()
for index, message_id in ipairs(given.message_ids) do
  local body, extra = bodies[index], given.extras[index]
  local entry = known(given.sources[index], message_id)
  if not entry then
    insert(body, extra and extra.expires)
    sightings[index] = {'s', true, false}
  else
    local progress, old = entry.progress, entry.content
    local new = content_of(stamp(now) .. body)
    if progress[STATE] ~= 'd' then
      progress[LAST_SEEN] = now
      save(entry)
      if new.hash and not old.hash then
        local rest = rest_of(old)
        old.hash, old.algorithm = new.hash, new.algorithm
        old = rebuild(entry.id, old, rest)
      end
    end
    sightings[index] = {progress[STATE], false, contradicts(new, old)}
  end
end
save_sequence()
return pack(sightings)
