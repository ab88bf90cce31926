-- needs: entries names lines endings settling
-- How often targets have been tried. While a claim holds, only its holder's settlement changes that.
local attempts = {}
for index, target in ipairs(given) do
  local id = target.id or by_name(target.message_id, target.source)
  if id == 'ambiguous' then return 'ambiguous' end
  attempts[index] = id and view(call('HGET', STATES, id))[ATTEMPT] or 0
end
return attempts
