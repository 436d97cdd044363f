"""Planning: what failures cost, what to buy, and a survey of a network."""
