-- needs: entries known_keys fifo joins transitions finding
-- Makes waiting messages done. Arguments: a filter, see lib/finding.lua. Returns their keys as MessagePack, and the `after` of
-- the next call.
local ids, next_after = find(args)
if #ids > 0 then write_even_if_full() end
local keys = {}
for index, id in ipairs(ids) do
  local entry = load(id)
  keys[index] = {entry.content.source, entry.content.message_id}
  finish(entry, 'cancelled', '', policy.blank)
end
publish_wakeup()
return {pack(keys), next_after}
