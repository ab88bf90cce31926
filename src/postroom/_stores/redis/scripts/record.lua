-- needs: entries known_keys fifo joins transitions arrivals
-- Records that keys were seen. Arguments: `extras` with `expires` by position, and those of lib/arrivals.lua. Returns {state,
-- is new, conflict} per key, as MessagePack.
if not has_ids(#args.message_ids) then return NEEDS_IDS end
local key_statuses, bodies = {}, split_bodies()
for index, message_id in ipairs(args.message_ids) do
  local body, extra = bodies[index], args.extras[index]
  local entry = find_known(args.sources[index], message_id)
  if not entry then
    insert_seen(body, extra and extra.expires)
    key_statuses[index] = {'s', true, false}
  else
    local progress, old = entry.progress, entry.content
    local new = content_of(pack_time(now) .. body)
    if progress[STATE] ~= 'd' then
      progress[LAST_SEEN] = now
      save(entry)
      if new.hash and not old.hash then
        local rest = rest_of(old)
        old.hash, old.hash_algorithm = new.hash, new.hash_algorithm
        old = write_content(entry.id, old, rest)
      end
    end
    key_statuses[index] = {progress[STATE], false, contradicts(new, old)}
  end
end
save_sequence()
return pack(key_statuses)
