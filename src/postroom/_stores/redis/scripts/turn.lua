-- needs: entries names lines endings settling claiming
-- Settles and claims: a worker's whole round.
even_if_full()
local acks, others = settle(given.acks, given.others)
if not acks then return 'ambiguous' end
local answer = {acks, others, claim(given.ask)}
tell()
return answer
