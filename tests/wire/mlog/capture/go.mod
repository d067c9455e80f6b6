module capture

go 1.19
