-- needs: entries names lines endings finding
-- Makes dead messages wait again; answers their keys, and where to go on.
local ids, next_after = find(given)
local keys = {}
for index, id in ipairs(ids) do
  local entry = load(id)
  keys[index] = {entry.content.source, entry.content.message_id}
  revive(entry)
end
tell()
return {pack(keys), next_after}
