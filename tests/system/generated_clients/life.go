// Manages a pet, an image, an order and a user with a client that openapi-generator makes for Go.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"

	api "petstore"
)

func check(holds bool, what ...any) {
	if !holds {
		panic(fmt.Sprint(what...))
	}
}

// done returns the result of a call that succeeds.
func done[T any](value T, response *http.Response, err error) T {
	check(err == nil, err)
	return value
}

func fails[T any](status int, value T, response *http.Response, err error) {
	check(err != nil && response.StatusCode == status, "no ", status)
	problem, ok := err.(*api.GenericOpenAPIError).Model().(api.Problem)
	check(ok && problem.GetCode() == int32(status), err)
}

func main() {
	host, key := os.Args[1], os.Args[2]
	image, err := base64.StdEncoding.DecodeString(os.Args[3])
	check(err == nil, err)
	configuration := api.NewConfiguration()
	configuration.Servers = api.ServerConfigurations{{URL: host + "/api/v3"}}
	client := api.NewAPIClient(configuration)
	pets, store, users := client.PetAPI, client.StoreAPI, client.UserAPI
	keys := map[string]api.APIKey{"api_key": {Key: key}}
	admin := context.WithValue(context.Background(), api.ContextAPIKeys, keys)

	input := api.NewPetInput("Rex")
	tag := api.NewTag()
	tag.SetName("go")
	input.SetTags([]api.Tag{*tag})
	pet := done(pets.AddPet(admin).PetInput(*input).Execute())
	id := pet.GetId()
	max := api.NewPetReplacement(id, "Max")
	max.SetTags(pet.GetTags())
	check(done(pets.UpdatePet(admin).PetReplacement(*max).Execute()).GetName() == "Max", "not replaced")
	form := done(pets.UpdatePetWithForm(admin, id).Name("Ada").Execute())
	check(form.GetName() == "Ada", "not renamed")
	found := done(pets.FindPetsByTags(admin).Tags([]string{"go", "none"}).Execute())
	check(len(found) == 1 && found[0].GetId() == id, found)

	file, err := os.CreateTemp("", "*.png")
	check(err == nil, err)
	defer os.Remove(file.Name())
	file.Write(image)
	file.Seek(0, io.SeekStart)
	uploaded := done(pets.UploadFile(admin, id).Body(file).Execute())
	got := done(pets.GetImage(admin, id, uploaded.GetImageId()).Execute())
	content, err := io.ReadAll(got)
	os.Remove(got.Name())
	check(err == nil && bytes.Equal(content, image), "another image")
	done(pets.DeleteImage(admin, id, uploaded.GetImageId()).Execute())

	order := done(store.PlaceOrder(admin).OrderInput(*api.NewOrderInput(id)).Execute())
	check(order.GetQuantity() == 1 && order.GetStatus() == api.PLACED, order)
	patch := api.NewOrderPatch()
	patch.SetStatus(api.APPROVED)
	check(done(store.PatchOrder(admin, order.GetId()).OrderPatch(*patch).Execute()).GetStatus() == api.APPROVED, "not approved")
	done(store.DeleteOrder(admin, order.GetId()).Execute())
	missing, response, err := store.GetOrderById(admin, order.GetId()).Execute()
	fails(404, missing, response, err)

	password := "correct horse battery staple"
	account := api.NewUserInput("go-Adä")
	account.SetPassword(password)
	created := done(users.CreateUser(context.Background()).UserInput(*account).Execute())
	text := done(users.CreateSession(context.Background()).Login(*api.NewLogin(password, created.GetUsername())).Execute())
	// The client returns a text as it is written in JSON.
	var token string
	err = json.Unmarshal([]byte(text), &token)
	check(err == nil, err)
	session := context.WithValue(context.Background(), api.ContextAccessToken, token)
	details := api.NewUserDetails()
	details.SetFirstName("Ada")
	check(done(users.UpdateUser(session, created.GetUsername()).UserDetails(*details).Execute()).GetFirstName() == "Ada", "not changed")
	done(users.LogoutUser(session).Execute())
	user, response, err := users.GetUserByName(session, created.GetUsername()).Execute()
	fails(401, user, response, err)
	done(users.DeleteUser(admin, created.GetUsername()).Execute())
	done(pets.DeletePet(admin, id).Execute())
	gone, response, err := pets.GetPetById(admin, id).Execute()
	fails(404, gone, response, err)
}
