"""Results as tables on the terminal. Packages that compute print nothing."""
