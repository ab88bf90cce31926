-- needs: entries names lines endings finding
-- Ends waiting messages as done; returns their keys, and where to go on.
local ids, next_after = find(given)
if #ids > 0 then even_if_full() end
local keys = {}
for index, id in ipairs(ids) do
  local entry = load(id)
  keys[index] = {entry.content.source, entry.content.message_id}
  finish(entry, 'cancelled', '', policy.blank)
end
tell()
return {pack(keys), next_after}
