-- needs: entries lines endings claiming
even_if_full()
return {claim(given)}
