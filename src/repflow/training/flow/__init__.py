"""The flow of a model in training: a meter for any loop, and callbacks for Trainer and Lightning."""
