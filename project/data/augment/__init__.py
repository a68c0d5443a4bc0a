"""What is done to training images at random, a whole batch at once, without any state."""
