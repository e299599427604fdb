"""Who decides: observation, action, controllers, topic predictor."""
