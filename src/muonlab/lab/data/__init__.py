"""The datasets of the lab: five of the hub and one embedded, decoded once, mapped from the cache, batched by index."""
