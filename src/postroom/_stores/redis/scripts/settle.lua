-- needs: entries names lines endings settling
even_if_full()
local acks, others = settle(given.acks, given.others)
if not acks then return 'ambiguous' end
tell()
return {acks, others}
