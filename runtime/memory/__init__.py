"""The one byte budget: drafts, loader, stored KV, eviction."""
