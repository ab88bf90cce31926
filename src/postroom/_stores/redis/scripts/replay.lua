-- needs: entries known_keys fifo joins transitions finding
-- Makes dead messages wait again. Arguments: a filter, see lib/finding.lua. Returns their keys as MessagePack, and the `after`
-- of the next call.
local ids, next_after = find(args)
local keys = {}
for index, id in ipairs(ids) do
  local entry = load(id)
  keys[index] = {entry.content.source, entry.content.message_id}
  revive(entry)
end
publish_wakeup()
return {pack(keys), next_after}
